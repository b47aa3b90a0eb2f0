#!/usr/bin/env python3
"""Writes words.txt, the 7,776 words that od-main pair draws from (docs/PROTOCOL.md, "Pairing").

    apt-get download scowl && dpkg -x scowl_*.deb scowl
    common/pair/make_words.py scowl/usr/share/dict/scowl > common/pair/words.txt

SCOWL sorts English words into levels by how common they are. Taken, the most common and the shortest first, are words of three to eight
letters without an accent that are no inflection of another (plural, past, comparative) and hard to take for another: no two become the same
by changing, leaving out or swapping letters once. Words that a stranger would not like to see on a screen are left out."""
import re
import sys
from pathlib import Path

COUNT = 7776
LEVELS = (10, 20, 35, 40, 50)
KINDS = ("english-words", "american-words")
NOTICE = """\
# Words of od-main pair, one a line, sorted; common/pair/make_words.py makes this file from SCOWL 2020.12.07 (Debian package scowl), whose
# notices follow. They concern this list, not the program.
#
# Copyright 2000-2018 by Kevin Atkinson
#
# Permission to use, copy, modify, distribute and sell these word lists, the associated scripts, the output created from the scripts, and
# its documentation for any purpose is hereby granted without fee, provided that the above copyright notice appears in all copies and that
# both that copyright notice and this permission notice appear in supporting documentation. Kevin Atkinson makes no representations about
# the suitability of this array for any purpose. It is provided "as is" without express or implied warranty.
#
# Of its levels up to 50, the sources are the Moby lexicon, Brian Kelk's UK English Wordlist and Alan Beale's 12Dicts, all in the public
# domain, and for inflections WordNet:
#
# WordNet 1.6 Copyright 1997 by Princeton University. All rights reserved. Permission to use, copy, modify and distribute this software and
# database and its documentation for any purpose and without fee or royalty is hereby granted, provided that you agree to comply with the
# following copyright notice and statements, including the disclaimer, and that the same appear on ALL copies of the software, database and
# documentation, including modifications that you make for internal use or for distribution. THIS SOFTWARE AND DATABASE IS PROVIDED "AS IS"
# AND PRINCETON UNIVERSITY MAKES NO REPRESENTATIONS OR WARRANTIES, EXPRESS OR IMPLIED. BY WAY OF EXAMPLE, BUT NOT LIMITATION, PRINCETON
# UNIVERSITY MAKES NO REPRESENTATIONS OR WARRANTIES OF MERCHANTABILITY OR FITNESS FOR ANY PARTICULAR PURPOSE OR THAT THE USE OF THE LICENSED
# SOFTWARE, DATABASE OR DOCUMENTATION WILL NOT INFRINGE ANY THIRD PARTY PATENTS, COPYRIGHTS, TRADEMARKS OR OTHER RIGHTS. The name of
# Princeton University or Princeton may not be used in advertising or publicity pertaining to distribution of the software and/or database.
# Title to copyright in this software, database and any associated documentation shall at all times remain with Princeton University and
# LICENSEE agrees to preserve same."""

# Beginnings of words about sex, bodies, violence, crime, drugs, illness, death, slurs, faiths, parties and peoples; "$": the whole word.
UNWELCOME = re.compile(r"""^(
abort abus addict adult aids$ alcohol anal$ anus apartheid arab arous arse assass assault atroci ass$
babe$ balls$ bastard beat$ beheld behead bible bigot bisex bitch black$ blood bloody boner bomb boob brainwas bra$ breast brothel brutal bugger buddh bullshit
butcher butt$ buttock cancer cannab carcass castrat catholic chink choke$ christ cock$ cocain cohabit colored condom communis concub contracep coon$ corpse
coward crap creed$ cremat cripple crotch crucif cruel cult$ cum$ cunt damn dead deaf death deceas defecat deform demon depress devil diarrh dick
die$ died$ disab diseas dope$ drown drug drunk dyke$ dumb dwarf ejacul elector enslav erect erotic execut exorc explos extremis faec fag faggot
fairy$ fart fascis fatal fat$ feces felat felon femin fetish fetus filth flesh foetus fondle fornic foul frigid fuck funeral gallows gas$ gay$
gender genit genocid ghetto gipsy god$ goddam gore$ gory$ grave$ groin grope gun$ gunman gunfire gypsy handicap hang$ hate hatred hell$ hellish herpes hermaph heroin
heterose hindu hitler holocaus homeless homicid homo$ homosex hooker horny hostage humiliat hung$ hymn hump$ idiot immigra impoten incest
infect infidel insan intercou islam jail jerk$ jesus jew$ jewish jihad junk$ junkie kidnap kike kill kinky koran lame$ leper leprosy lesb lethal lewd liberal libid
loser lust lynch maim malaria manslaug marijuan martyr masoch massacr masturb menopaus menstr midget militar mistress molest mongol morgue morph
moron mosque mourn murder muslim mutilat naked narcot nazi necro negro nig nipple nympho nude nudity obes obitu obscen oppress oral$ orgasm
orgy orphan oriental outcast overdos pagan pants$ parasit penis perish persecut pervert pest phallus piss plague poison poop pope poor$ porn posthum pot$ preach pregnan
priest prison promisc prostit puberty pube pubic puke puss queer quran rabid racial racis rape rapist rectal rectum religio retard ripper ritual rot$ rotten roman
saddis sadis saint satan scalp scrotum scum semen semit senil sewage sex shag shit sissy skank slaught slave slay slut smear$ smother snot sodom spank
sperm spic spit stab$ starv steriliz stench stink stool$ strangl strip stupid suck suffocat suicid sweat syphil taboo tampon tart$ terror testic theolog thug
tit$ titty toilet torment tortur torso tramp transves trauma tribe$ tumor turd twat ulcer uncivil undress urin uterus vagina vampire venereal victim
viol virago virgin virile vomit voodoo vulgar vulva wank war$ warfare warlord weapon weed$ whip whore widow wimp witch womb wound yid zion
abscess ammo atheis barbar baptiz bidet bulimi casualt coffin codein convict crime crusade deprav dervish dropsy epilep evil execra gunshot harem hemorr hernia hysteri lunat messiah miscarr ninny nuke ovar polio rehab sahib sedativ sexis sharia stroke tortu twerp tyran wart whor
)""".replace("\n", " ").replace("$ ", "$|").replace(" ", "|").replace("(|", "(").replace("|)", ")").replace("||", "|"))


def read(folder: Path) -> tuple[list[list[str]], set[str]]:
    levels = [sorted({w for kind in KINDS for w in re.findall(r"^[a-z]{3,8}$", (folder / f"{kind}.{n}").read_text("latin-1"), re.M)},
                     key=lambda w: (len(w), w)) for n in LEVELS]
    return levels, {w for words in levels for w in words}


def is_inflected(word: str, known: set[str]) -> bool:
    for end in ("s", "es", "d", "ed", "r", "er", "ers", "est", "ly", "ing"):
        stem = word.removesuffix(end)
        if stem != word and len(stem) > 1 and (stem in known or stem + "e" in known or (stem[-1] == stem[-2] and stem[:-1] in known)):
            return True
    return any(word.endswith(end) and word.removesuffix(end) + "y" in known for end in ("ies", "ied", "ier", "iest", "ily"))


def neighbours(word: str) -> set[str]:
    """Two words have one in common if they are one change, omission, insertion or swap of letters apart."""
    cut = {word[:i] + word[i + 1:] for i in range(len(word))}
    changed = {word[:i] + "?" + word[i + 1:] for i in range(len(word))}
    swapped = {word[:i] + word[i + 1] + word[i] + word[i + 2:] for i in range(len(word) - 1)}
    return cut | changed | swapped | {word}


def main() -> None:
    levels, known = read(Path(sys.argv[1]))
    words: list[str] = []
    taken: set[str] = set()
    for level in levels:
        for word in level:
            near = neighbours(word)
            if not (len(words) == COUNT or near & taken or UNWELCOME.match(word) or is_inflected(word, known)):
                words.append(word)
                taken |= near
    assert len(words) == COUNT, len(words)
    print(NOTICE)
    print("\n".join(sorted(words)))


if __name__ == "__main__":
    main()
