from ntl.report.style import OBJECTIVES, styles


def test_objectives_are_distinguishable_without_color():
    looks = styles(OBJECTIVES).values()
    assert len({(how.dashes, how.marker) for how in looks}) == len(OBJECTIVES)
    assert len({(how.color, how.dashes) for how in looks}) == len(OBJECTIVES)


def test_an_objective_has_the_same_style_in_every_report():
    few, many = styles(["T5 + NTL-WAS"]), styles(["a", "T5", "b", "T5 + NTL-WAS"])
    assert few["T5 + NTL-WAS"] == many["T5 + NTL-WAS"]
    assert len(set(styles([*OBJECTIVES, "a", "b"]).values())) == len(OBJECTIVES) + 2
