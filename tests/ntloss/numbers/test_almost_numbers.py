"""What is almost one number is never cut to another one: ranges, ratios, mixed units, powers, magnitudes."""

import pytest

from ntloss.numbers import parse_number

PARTS = """
18 percent to 25 percent | 5 kg to 7 kg | 5 hours or 6 hours | 5 °C to 7 °C | 5 %-7 % | 5…7 | 10…20 km
between 5 kg and 10 kg | between 5% and 10% | from 3 km to 5 km | 20 Euro bis 30 Euro | 2 à 3 | 5 m or 6 m
20% of 50 | 5 percent of 20 | 20 % of the 50 | 9 of the 10 | 9 out of the 10 | 1 out of every 5
1 in every 5 | 2 in 5 | 8 (of 10) | 8 (out of 10) | 5 on a scale of 10 | 5 from 1 to 10
8 out of a possible 10
10 to the power 3 | 10 to the power of 3 | 2 to the 3rd | 2 to the 10th | 2 cubed | 5 point three
5 and 3 tenths | 1m80 | 1m 80 | 5min30 | 5ft 7 | 5' 7" | 5′ 7″ | 90° 30' | 90°30' | 48° 51′ 24″ | 48°51'N
10€50 | 6h 30
3.141 59 | 0.000 01 | 12.345 678 9 | 1,,000 | 1,\u200b000 | 1\u200b000 | 5\\!000 | ,89 € | 2.50- | 7-
5 Tsd. | 3 Mia | 5 tenths | 5 백만 | 3십억 | $5 grand | $5 mil | 7 Milliarden | 5 milliards
45.00 CR | 3 billiard
($5.2) million | $(1,234) thousand | \\frac1{72} | \\frac{1}2 | \\frac 1 2
5\\text{ million} | 5~\\text{million}
5 \\text{ hours } 30 \\text{ minutes}
**3** to **5** | *3*–*5* | `1`/`2` | **12**:30 | minus **5**
between <b>3</b> and <b>5</b> | **5** hours **30** minutes
US$5 to US$10 | A$5 to A$10 | between USD 5 and USD 10 | US$5bn–US$6bn | between Rs. 5 and Rs. 10
USD 5-USD 10
5 years–10 years | 1 day-2 days | 3 ms-4 ms | 3年半 | 8点半 | 2시간 반 | 2 and three-fourths
2 часа \u0441 половиной
2 heures et 30 minutes | 1 ora e 30 minuti | 5 \u0440\u0443\u0431. 50 коп | −5…−3
6.02D23 | 1D5 | 1.5 e5 | 1e5kg | 负3 | 零下5度 | minus 7 | negative 3 | 4m EUR | 3B USD | 5 lac | 3 dozen
5 sqrt(2) | 5*sqrt(2) | 2 × sqrt(3) | sqrt( 2 ) | 2^( 3) | 10^{ 6} | 0.(3)
2024年5月3日 | 3小时30分 | 3个小时30分钟 | 1年3か月 | 1年3カ月
"""
WHOLE = {
    "42 m2": 42, "3 cm3": 3, "9 g of H2SO4": 9, "2.5 W/m2": 2.5, "4 mg/dL": 4, "1990[a]": 1990, "100[2]": 100,
    "1.e-03": 0.001, "2.E5": 2e5, "1.5D-03": 0.0015, "5千克": 5, "3千米": 3, "5 Mio. Euro": 5e6,
    "4 out of five": 4, "80 over": 80, "5 % more": 5, "5% off": 5, "5… and": 5, "5...": 5,
    "a 90° turn": 90, "37.5°C": 37.5,     "5 in the box": 5, "3 in 1984": 1984, "5 and 6": 6, "5 or": 5,
    "5 m and": 5, "10€": 10, "5 percent of it": 5,
    "1 point": 1, "3 points to 4 others": 4, "6'": 6, "0.123 4.5": 4.5, "5 to the left": 5, "at 10 m": 10,
    "2 minutes to the station": 2, "5 tenants": 5, "10 of them": 10, "백 5": 5, "1.5 x": 1.5,
    "2024年3号楼": 3, "**5** 3": 3, "**5**(3 of us)": 3,
    "5-USD note": 5, "5 and US$6": 6, "5 dimes and a quarter": 5,
    "**1**,234": 1234, "*67* million": 67e6, "<b>$1.5</b> billion": 1.5e9, "`42`": 42, "`5`,`6`": 6,
    "1 **200**": 200,
    "8.314 J mol-1 K-1": 8.314, "5 kg m−2 s−1": 5, "0.1 mol dm-3": 0.1, "Rs. 500 lunch": 500, "年3半径": 3,
    "$(5)$": 5, "$(1,234.50)": -1234.5,
}  # fmt: skip


@pytest.mark.parametrize(
    "text", [text.strip() for line in PARTS.splitlines() for text in line.split(" | ") if text]
)
@pytest.mark.parametrize("around", ["{}", "It is {}.", "So: {}\n", "The answer ({})"])
def test_a_part_of_a_quantity_is_no_number(text, around):
    assert parse_number(around.format(text)) is None


@pytest.mark.parametrize(("text", "number"), WHOLE.items())
def test_what_resembles_a_part_is_a_number(text, number):
    assert parse_number(text) == number
