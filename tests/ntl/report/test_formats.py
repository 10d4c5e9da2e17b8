from ntl.report.formats import latex_table


def test_latex_names_are_escaped_and_rules_span_their_columns():
    columns = {
        ("", "objective"): ["T5 + λ_1 & 50 %"],
        ("arithmetic__mul", "MAE"): ["**0.5 ± n/a**"],
        ("arithmetic__mul", "R²"): ["a\\b^2"],
    }
    text = latex_table(columns, "On $ and #")
    assert r" & \multicolumn{2}{c}{arithmetic\_\_mul} \\" in text
    assert r"\cmidrule(lr){2-3}" in text
    assert (
        r"T5 + $\lambda$\_1 \& 50 \% & \textbf{0.5 $\pm$ n/a} & a\textbackslash{}b\textasciicircum{}2 \\"
        in text
    )
    assert r"\caption{On \$ and \#}" in text
    assert r"\begin{tabular}{lrr}" in text
