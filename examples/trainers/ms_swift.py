"""ms-swift: swift sft --external_plugins examples/trainers/ms_swift.py --loss_type ntl ..."""

from ntloss.trainers.ms_swift import register_number_loss

register_number_loss(weight=0.3, criterion="ntl_was")
