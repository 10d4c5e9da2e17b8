"""torchtitan, in the folder of this file:

python -m torchtitan.train --module torchtitan_runs --config llama3_8b_ntl
"""

from typing import Any

from torchtitan.models.llama3 import config_registry

from ntloss.trainers.torchtitan import with_number_loss


def llama3_8b_ntl() -> Any:
    """Llama 3 8B with a number token loss that suits tokens of up to three digits."""
    return with_number_loss(config_registry.llama3_8b(), weight=0.3, criterion="dist2")
