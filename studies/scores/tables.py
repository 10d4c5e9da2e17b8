"""Write the tables of this study, whose answers are levels from 0 to 8, from tables of mean ratings.

    python -m studies.scores.tables sentiment data/sentiment.csv data/sentiment_levels.csv
    python -m studies.scores.tables emobank data/emobank.csv data/emobank_levels.csv

Sentiment is rated in nine levels from 0 to 80, and each rating is kept. The valence of EmoBank, a mean from
1 to 5, has nine levels of half a point. A mean between two levels goes to the upper one.
"""

import sys

import numpy as np
import pandas as pd


def main(name: str, source: str, target: str) -> None:
    """Read the source and write the target."""
    table = pd.read_csv(source)
    made = table[["text"]].copy()
    if name == "sentiment":
        ratings = [np.array(row.split(), float) / 10 for row in table["ratings"]]
        means = np.array([of_people.mean() for of_people in ratings])
        made["ratings"] = [" ".join(f"{rating:.0f}" for rating in of_people) for of_people in ratings]
    else:
        means = 2 * (table["valence"].to_numpy() - 1)
    made["level"] = np.floor(means + 0.5).astype(int)
    made.to_csv(target, index=False, lineterminator="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
