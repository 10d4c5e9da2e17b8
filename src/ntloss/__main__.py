"""Run the `ntloss` command as `python -m ntloss`."""

from ntloss.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
