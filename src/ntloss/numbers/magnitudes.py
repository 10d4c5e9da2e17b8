"""Words for large numbers in other languages than English. Written by tools/magnitudes.py.

Source: the compact forms of decimals of Unicode's CLDR, from babel 2.19.0.
"""

_WORDS = """
bil bilhao bilhoes bilhão bilhões biliao bilijon bilijona bilijoni bilijonov bilijun bilijuna bilio
bilioes bilion biliona bilionov bilionow bilions bilionu biliony bilionów bilionů bilião bilió
bilión bilióna biliónov bilióny biliões bilj biljoen biljon biljoner biljoona biljoonaa billio
billion billionen billioner billions billió billon billones billón bin bln duizend ezer jt juta md
mie mii mil mila miler milers milhao milhoes milhão milhões miliar miliard miliarda miliarde
miliardi miliardo miliardow miliardy miliardów milijard milijarda milijardai milijardas milijarde
milijardi milijardo milijardu milijardų milijon milijona milijonai milijonas milijoni milijono
milijonov milijonu milijonų milijun milijuna milio milioane milion miliona milione milioni milionov
milionow milions milionu miliony milionów milionů miliárd milió milión milióna miliónov milióny milj
miljard miljarder miljardi miljardia miljardit miljards miljardu miljoen miljon miljoner miljoni
miljonit miljons miljonu miljoona miljoonaa mill mille milliard milliarde milliarden milliarder
milliards millier millio million millionen millioner millions milliárd millió millon millones millón
milyar milyon mio mld mljrd mln mlr mlrd mrd nghin nghìn rb ribu tausend thousand tis tisic tisica
tisice tisoc tisoč tisuca tisuce tisuća tisuće tisíc tisíca tisíce trieu tril trilhao trilhoes
trilhão trilhões trilijonai trilijonas trilijono trilijonu trilijonų trilioane trilion triliun trilj
triljon triljoni triljonit triljons triljonu trillion trilyon triệu trln tuh tuhat tuhatta tukst
tukstanciai tukstancio tukstanciu tukstantis tukstosi tukstosu tukstotis tusen tusind tys tysiac
tysiaca tysiace tysiecy tysiąc tysiąca tysiące tysięcy tūkst tūkstantis tūkstančiai tūkstančio
tūkstančių tūkstotis tūkstoši tūkstošu tỷ δισ δισεκατομμύρια δισεκατομμύριο εκατομμύρια εκατομμύριο
τρισ τρισεκατομμύρια τρισεκατομμύριο χιλ χιλιάδα χιλιάδες бил билион билиона мил милиард милиарда
милион милиона милијарда милијарде милијарди миллиард миллиарда миллиардов миллион миллиона
миллионов млн млрд мільйон мільйона мільйони мільйонів мільярд мільярда мільярди мільярдів тис тисяч
тисяча тисячі трилион трилиона триллион триллиона триллионов трильйон трильйона трильйони трильйонів
трлн тыс тысяч тысяча тысячи хил хиляди хиљ хиљада хиљаде אלף טריליון מיליארד מיליון آلاف ألف ارب
ترليون تریلیون لاکھ ملايين مليار مليون میلیارد میلیون هزار هزارمیلیارد ٹریلین کروڑ کھرب ہزار अब्ज
अरब करोड़ कोटी खरब खर्व नील पद्म लाख हज़ार हजार কোটি লাখ হাজার ஆயிரம் டிரில்லியன் பில்லியன்
மில்லியன் ట్రి ట్రిలియన్ ట్రిలియన్లు బిలియన్ బిలియన్లు మిలియన్ మిలియన్లు వేయి వేలు
"""
OTHER_MAGNITUDES = frozenset(_WORDS.split())
"""In lower case, with and without accents; of scripts that put spaces between words."""
