"""The lab: reproduce, compare and extend the number token loss paper.

A run, from the command to its results:

    __main__.main                   finds the command
    commands.train                  lets Hydra compose the settings from `conf/` and the overrides
    commands.task                   does one run in the folder that Hydra chose
    settings.read_config            makes the settings of each group, and checks that they fit together
    run.run                         reads top to bottom what a run does:
        trainer.trainer_arguments         transformers' arguments
        data.Data.read                    the examples, of the dataset that was chosen
        identity.identify                 what the run is, by which it is found finished, continued or refused
        run.find_start                    the trained model, or the checkpoint to continue from
        run.prepare                       checks everything before the first step:
            models.build                        the model with its tokenizer
            trainer.EncodedRows, LabTrainer     the rows as token ids, and transformers' Trainer
            losses.add_loss                     `ntloss.trainers.make_number_aware`
        run.train                         transformers' training loop
        run.answer_tests                  `evaluate.score_answers` of the validation and test sets
        evaluate.write_results            metrics.json and predictions.jsonl
"""
