"""Names of the files in the folders of runs and sweeps, see docs/lab.md."""

HYDRA = ".hydra"  # in a run's folder, with its configuration
STATE = "trainer_state.json"  # transformers' name; in the run's own folder: training has ended
CHECKPOINT = "checkpoint-"  # transformers' prefix of checkpoint folders
LEARNED_ROWS = "learned_rows.npy"  # beside the weights, see `ntl.identity.learned_rows`
RESULTS = "metrics.json"  # written last: an evaluation whose folder holds it is finished
PREDICTIONS = "predictions.jsonl"
LOG = "train.log"
JOBS = ".jobs"  # in a sweep's folder, with a file for each run
PACK = "metrics.csv"  # of a report, which can stand for its runs
