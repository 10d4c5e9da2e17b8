from ntl.report.style import KNOWN, styles


def test_known_labels_are_distinguishable_without_color():
    looks = styles(KNOWN).values()
    assert len({(how.dashes, how.marker) for how in looks}) == len(KNOWN)
    assert len({(how.color, how.dashes) for how in looks}) == len(KNOWN)


def test_a_label_has_the_same_style_in_every_report():
    few, many = styles(["T5 + NTL-WAS"]), styles(["a", "T5", "b", "T5 + NTL-WAS"])
    assert few["T5 + NTL-WAS"] == many["T5 + NTL-WAS"]
    assert len(set(styles([*KNOWN, "a", "b"]).values())) == len(KNOWN) + 2
