"""The published losses under the module name of `ntloss` 0.3.2: `from ntloss.core import NTLoss`."""

from ntloss.published import NTLoss, NTLossDotProduct, NumberLevelLoss

__all__ = ["NTLoss", "NTLossDotProduct", "NumberLevelLoss"]
