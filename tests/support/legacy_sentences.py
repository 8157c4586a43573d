"""Sentences of the Universal Declaration of Human Rights, by the legacy encodings of their languages."""

from __future__ import annotations

RUSSIAN = (
    "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "Они наделены разумом и совестью и должны поступать в отношении друг друга в духе братства.",
    "Каждый человек имеет право на жизнь, на свободу и на личную неприкосновенность.",
    "Никто не должен содержаться в рабстве или в подневольном состоянии.",
    "Все люди равны перед законом и имеют право, без всякого различия, на равную защиту закона.",
    "Никто не может быть подвергнут произвольному аресту, задержанию или изгнанию.",
    "Каждый человек имеет право на гражданство.",
    "Каждый человек имеет право на образование.",
    "Каждый человек имеет право на отдых и досуг, включая право на оплачиваемый периодический отпуск.",
    "Каждый человек имеет обязанности перед обществом.",
)
JAPANESE = (
    "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "人間は、理性と良心とを授けられており、互いに同胞の精神をもって行動しなければならない。",
    "すべて人は、生命、自由及び身体の安全に対する権利を有する。",
    "何人も、奴隷にされ、又は苦役に服することはない。",
    "すべて人は、いかなる場所においても、法の下において、人として認められる権利を有する。",
    "何人も、ほしいままに逮捕、拘禁、又は追放されることはない。",
    "すべて人は、国籍をもつ権利を有する。",
    "すべて人は、教育を受ける権利を有する。",
    "すべて人は、労働時間の合理的な制限及び定期的な有給休暇を含む休息及び余暇をもつ権利を有する。",
    "すべて人は、その人格の自由かつ完全な発展がその中にあってのみ可能である社会に対して義務を負う。",
)
KOREAN = (
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "인간은 천부적으로 이성과 양심을 부여받았으며 서로 형제애의 정신으로 행동하여야 한다.",
    "모든 사람은 생명과 신체의 자유와 안전에 대한 권리를 가진다.",
    "어느 누구도 노예상태 또는 예속상태에 놓여지지 아니한다.",
    "모든 사람은 법 앞에 평등하며 어떠한 차별도 없이 법의 동등한 보호를 받을 권리를 가진다.",
    "어느 누구도 자의적으로 체포, 구금 또는 추방되지 아니한다.",
    "모든 사람은 국적을 가질 권리를 가진다.",
    "모든 사람은 교육을 받을 권리를 가진다.",
    "모든 사람은 노동시간의 합리적 제한과 정기적인 유급휴가를 포함하여 휴식과 여가의 권리를 가진다.",
    "모든 사람은 그 안에서만 자신의 인격이 자유롭고 완전하게 발전할 수 있는 공동체에 대하여 의무를 가진다.",
)
SIMPLIFIED_CHINESE = (
    "人人生而自由，在尊严和权利上一律平等。",
    "他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "人人有权享有生命、自由和人身安全。",
    "任何人不得使为奴隶或奴役；一切形式的奴隶制度和奴隶买卖，均应予以禁止。",
    "法律之前人人平等，并有权享受法律的平等保护，不受任何歧视。",
    "任何人不得加以任意逮捕、拘禁或放逐。",
    "人人有权享有国籍，任何人的国籍不得任意剥夺。",
    "人人都有受教育的权利，教育应当免费，至少在初级和基本阶段应如此。",
    "人人有享有休息和闲暇的权利，包括工作时间有合理限制和定期给薪休假的权利。",
    "人人对社会负有义务，因为只有在社会中他的个性才可能得到自由和充分的发展。",
)
TRADITIONAL_CHINESE = (
    "人人生而自由，在尊嚴和權利上一律平等。",
    "他們賦有理性和良心，並應以兄弟關係的精神相對待。",
    "人人有權享有生命、自由和人身安全。",
    "任何人不得使為奴隸或奴役；一切形式的奴隸制度和奴隸買賣，均應予以禁止。",
    "法律之前人人平等，並有權享受法律的平等保護，不受任何歧視。",
    "任何人不得加以任意逮捕、拘禁或放逐。",
    "人人有權享有國籍，任何人的國籍不得任意剝奪。",
    "人人都有受教育的權利，教育應當免費，至少在初級和基本階段應如此。",
    "人人有享有休息和閒暇的權利，包括工作時間有合理限制和定期給薪休假的權利。",
    "人人對社會負有義務，因為只有在社會中他的個性才可能得到自由和充分的發展。",
)
FRENCH = (
    "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "Ils sont doués de raison et de conscience et doivent agir les uns envers les autres dans un esprit de fraternité.",
    "Tous sont égaux devant la loi et ont droit sans distinction à une égale protection de la loi.",
    "Nul ne peut être arbitrairement arrêté, détenu ou exilé.",
    "Toute personne a droit à l'éducation, qui doit être gratuite, au moins pour l'enseignement élémentaire.",
)
GERMAN = (
    "Alle Menschen sind vor dem Gesetz gleich und haben ohne Unterschied Anspruch auf gleichen Schutz für alle.",
    "Niemand darf willkürlich festgenommen, in Haft gehalten oder des Landes verwiesen werden.",
    "Sie sind mit Vernunft und Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen.",
    "Jeder hat das Recht auf Erholung und Freizeit und regelmäßigen bezahlten Urlaub.",
    "Niemand darf in Sklaverei oder Leibeigenschaft gehalten werden – für alle „Formen“ ist sie verboten.",
)
POLISH = (
    "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "Są oni obdarzeni rozumem i sumieniem i powinni postępować wobec innych w duchu braterstwa.",
    "Każdy człowiek ma prawo do życia, wolności i bezpieczeństwa swojej osoby.",
    "Nikt nie może być samowolnie aresztowany, zatrzymany lub wygnany z kraju.",
    "Każdy człowiek ma prawo do nauki, która jest bezpłatna przynajmniej na stopniu podstawowym.",
)
CZECH = (
    "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv.",
    "Jsou nadáni rozumem a svědomím a mají spolu jednat v duchu bratrství.",
    "Každý má právo na život, svobodu a osobní bezpečnost.",
    "Nikdo nesmí být svévolně zatčen, držen ve vazbě nebo vyhoštěn do vyhnanství.",
    "Každý má právo na vzdělání, které nechť je bezplatné, alespoň v počátečních a základních stupních.",
)
TURKISH = (
    "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "Akıl ve vicdana sahiptirler ve birbirlerine karşı kardeşlik zihniyeti ile hareket etmelidirler.",
    "Yaşamak, hürriyet ve kişi emniyeti her ferdin hakkıdır.",
    "Hiç kimse kölelik veya kulluk altında bulundurulamaz; köle ticareti her türlü şekliyle yasaktır.",
    "Kanun önünde herkes eşittir ve farksız olarak kanunun eşit korumasından istifade hakkını haizdir.",
    "Hiç kimse keyfi olarak tutuklanamaz, alıkonulamaz veya sürülemez.",
    "Her ferdin bir uyrukluk hakkı vardır.",
    "Her şahsın öğrenim hakkı vardır.",
    "Her şahsın dinlenmeye, eğlenmeye, bilhassa çalışma müddetinin makul surette sınırlandırılmasına hakkı vardır.",
    "Her şahsın, şahsiyetinin serbest ve tam gelişmesi ancak bir topluluk içinde mümkündür.",
)
HEBREW = (
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "כולם חוננו בתבונה ובמצפון, לפיכך חובה עליהם לנהוג איש ברעהו ברוח של אחווה.",
    "כל אדם יש לו הזכות לחיים, לחרות ולבטחון אישי.",
    "לא יהיה אדם עבד או משועבד; עבדות וסחר עבדים ייאסרו לכל צורותיהם.",
    "הכל שווים לפני החוק וזכאים ללא הפליה להגנה שווה של החוק.",
    "לא ייאסר אדם, לא ייעצר ולא יוגלה באופן שרירותי.",
    "כל אדם זכאי לאזרחות.",
    "כל אדם זכאי לחינוך.",
    "כל אדם זכאי למנוחה ולפנאי, לרבות הגבלה סבירה של שעות העבודה וחופשה תקופתית בשכר.",
    "כל אדם יש לו חובות כלפי הכלל.",
)
SENTENCES = {
    "koi8-r": RUSSIAN,
    "cp1251": RUSSIAN,
    "shift_jis": JAPANESE,
    "euc-jp": JAPANESE,
    "euc-kr": KOREAN,
    "gb18030": SIMPLIFIED_CHINESE,
    "big5": TRADITIONAL_CHINESE,
    "cp1252": FRENCH + GERMAN,
    "cp1250": POLISH + CZECH,
    "iso8859-2": POLISH + CZECH,
    "cp1254": TURKISH,
    "cp1255": HEBREW,
}


def texts_of(encoding: str) -> tuple[list[str], list[str]]:
    """Return ten short texts, of one sentence each, and ten long ones, of twenty lines in one language each."""
    sentences = SENTENCES[encoding]
    languages = [sentences[:5], sentences[5:]]
    long = [(language * 5)[start : start + 20] for language in languages for start in range(5)]
    return [f"{each}\n" for each in sentences], ["".join(f"{each}\n" for each in lines) for lines in long]
