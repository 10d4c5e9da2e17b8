"""`python -m ntloss` is `ntloss`."""

from ntloss.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
