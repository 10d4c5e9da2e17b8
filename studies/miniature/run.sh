#!/usr/bin/env bash
# The paper's table in miniature, from the root of the project: studies/miniature/run.sh [FOLDER]
# FOLDER holds the official files (train-easy, ..., extrapolate). Two seeds side by side, one core each. The same
# command continues what was interrupted.
set -euo pipefail
official=${1:-../shared/data/mathematics_dataset-v1.0}
export OMP_NUM_THREADS=1
ntl prepare arithmetic source="$official"
ntl prepare mathematics_dataset source="$official"

train() { # SEED and overrides
    ntl train --multirun run_specific_config@_global_=miniature training_args.resume_from_checkpoint=true \
        training_args.seed="$1" training_args.trial="miniature-seed$1" "${@:2}"
}
all_models() { # SEED, dataset, steps
    local same=(dataset_args="$2" training_args.max_steps="$3" training_args.eval_steps=$(($3 / 5)))
    train "$1" "${same[@]}" model_args=vanilla_t5,vanilla_t5_ntl,rt,rt_ntl,xval
    train "$1" "${same[@]}" model_args=vanilla_t5_ntl training_args.special_name=was \
        model_args.number_token_loss_with_wasserstein=true
    train "$1" "${same[@]}" model_args=vanilla_t5_regression_head model_args.log_scale_embeddings=true
}
one_seed() {
    all_models "$1" arithmetic 1000
    all_models "$1" mathematics_dataset 2500
}
for seed in 0 1; do one_seed $seed & done
wait
ntl report outputs/*/miniature-seed* --output results/miniature/report --overwrite
