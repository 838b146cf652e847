"""Rules of learning over labelled chat: precision and corrections stay above their goals; recall is stated."""

from __future__ import annotations

from typing import Any

import pytest
from support.cases import each
from support.evidence import share
from support.learning import remember_run, remember_score

import caliber
from caliber.learning.rules.reading import Reader

LABELLED = [
    ("open.json", 0.75, 0.9),
    ("sealed.json", 0.6, 0.9),
    ("open2.json", 0.6, 0.9),
    ("sealed2.json", 0.5, 0.6),
    ("open3.json", 0.7, 0.9),
    ("sealed3.json", 0.45, 0.6),
    ("open4.json", 0.6, 0.8),
    ("sealed4.json", 0.5, 0.5),
    # Nothing was tuned on this: of twelve due corrections three are missed (goal 0.9).
    ("sealed5.json", 0.35, 0.75),
]


@pytest.mark.parametrize(("name", "recall", "corrections"), share(LABELLED, 1, daily=5))
def test_labelled_chat(
    memory: caliber.Caliber, record_property: Any, name: str, recall: float, corrections: float
) -> None:
    talks = remember_score.conversations(remember_score.OPEN.with_name(name))
    result = remember_score.score(talks, remember_run.answers(memory, talks))
    record_property("score", str(result))
    print(name, result)
    assert result.precision >= 0.9, result.faults
    assert result.corrections >= corrections, result.faults
    assert result.recall >= recall, result.faults


def read(*texts: str) -> list[str]:
    """Return the statements of a conversation, an end with a minus before its value."""
    reader = Reader()
    out = []
    for text in texts:
        if text.startswith("assistant: "):
            reader.asked(text)
            continue
        for found in reader.read(text):
            content = getattr(found, "content", None)
            if content is None or found.restates:  # type: ignore[union-attr]
                continue  # "no more Cork" acts on a held fact alone
            person = found.person  # type: ignore[union-attr]
            who = "" if person is None else f"{person.name or person.role}: "
            ends = f"-{found.attribute} {found.value}".strip()  # type: ignore[union-attr]
            out.append(who + (ends if found.ends else content))  # type: ignore[union-attr]
    return out


@each(
    ("text", "facts"),
    [
        ("My name is Ana, I'm 34 years old.", ["is called Ana", "is 34 years old"]),
        ("I'm Carlos, 41, from Valencia", ["is called Carlos", "is 41 years old", "comes from Valencia"]),
        ("I grew up in Chicago but live in Denver now", ["grew up in Chicago", "lives in Denver"]),
        ("I work at Siemens as an engineer", ["works at Siemens", "works as an engineer"]),
        ("I'm a nurse at Charité", ["works as a nurse", "works at Charité"]),
        ("I left Siemens", ["-home Siemens"]),
        ("I no longer work at Siemens", ["-employer Siemens"]),
        ("I'm allergic to peanuts and shellfish", ["is allergic to peanuts", "is allergic to shellfish"]),
        ("I love hiking, swimming and jazz.", ["likes hiking, swimming and jazz"]),
        ("I don't like coffee anymore", ["-likes coffee"]),
        ("I'm not vegetarian any more", ["-diet vegetarian"]),
        ("I speak English and Polish", ["speaks English", "speaks Polish"]),
        ("My birthday is on 3 May.", ["has birthday on 3 May"]),
        ("My favourite band is Fleetwood Mac", ["favorite band: Fleetwood Mac"]),
        ("my dog is called Pixel", ["dog is called Pixel"]),
        ("my sister is vegan", ["sister: is vegan"]),
        ("I'm vegan, what can I cook?", ["is vegan"]),
        ("my timezone is CET", ["is in time zone CET"]),
        ("I got married last Saturday!!", ["is married"]),
        ("im vegan and i dont like tea", ["is vegan", "dislikes tea"]),
        ("just moved to Porto", ["lives in Porto"]),
        ("signed with Bosch yesterday", ["works at Bosch"]),
        ("not vegan anymore", ["-diet vegan"]),
        ("no shellfish please im allergic", ["is allergic to shellfish"]),
        ("I work at Siemens in Wrocław", ["works at Siemens in Wrocław", "lives in Wrocław"]),
        ("My aunt, who is 90, lives in Kobe", ["aunt: is 90 years old", "aunt: lives in Kobe"]),
        ("I have a cat called Tom and a dog named Rex", ["cat is called Tom", "dog is called Rex"]),
        ("we have two sons, Lars and Ole", ["son is called Lars", "son is called Ole"]),
        (
            "two kids (Zosia, 5 and Kuba, 2)",
            ["child is called Zosia", "Zosia: is 5 years old", "child is called Kuba", "Kuba: is 2 years old"],
        ),
        ("I've been living in Cologne since 2020", ["lives in Cologne"]),
        ("I'm a dad of three", ["is a dad of three"]),
        ("my dad is a Feyenoord fan", ["father: likes Feyenoord"]),
        ("I'm learning Swedish for a trip", ["is learning Swedish"]),
        ("my exam is on 23 May", ["exam on 23 May"]),
        ("we're moving to Oslo in June", ["is moving to Oslo in June"]),
        ("My husband loves jazz, I can't stand it", ["husband: likes jazz", "dislikes jazz"]),
        ("What should I cook for my wife Ana?", ["wife is called Ana"]),
        ("Carla here, quick question", ["is called Carla"]),
        ("vegan here, what can I bring?", ["is vegan"]),
        (
            "Hi, Tom here. 42, divorced, teacher.",
            ["is called Tom", "is 42 years old", "is divorced", "works as teacher"],
        ),
        ("I am nurse in a hospital", ["works as nurse in a hospital"]),
        ("I'm an optician in Leeds", ["works as an optician in Leeds", "lives in Leeds"]),
        ("My partner Dario and I live in Turin", ["partner is called Dario", "lives in Turin"]),
        ("my brother keeps bees", ["brother: keeps bees"]),
        ("I work nights at a bakery", ["works nights"]),
        ("I do quality control for a Danish firm", ["does quality control for a Danish firm"]),
        ("I coach the under-nines football team", ["role: coach the under-nines football team"]),
        ("I do yoga on Tuesdays", ["likes yoga"]),
        ("I grow tomatoes and basil", ["likes tomatoes and basil"]),
        ("jazz is my thing", ["likes jazz"]),
        ("I'm more of a tea person", ["likes tea"]),
        ("I can't deal with olives", ["dislikes olives"]),
        ("I'm scared of spiders", ["is afraid of spiders"]),
        ("my aunt uses a stick", ["aunt: uses stick"]),
        ("I had a stroke in May", ["had stroke"]),
        ("I've had asthma since 2001", ["has asthma"]),
        ("my surgery is on 12 May", ["surgery on 12 May"]),
        ("I've got my driving test on Friday", ["driving test on Friday"]),
        ("I'm off to Paris on Friday", ["is going to Paris on Friday"]),
        ("I have B1 in German", ["has language level B1"]),
        ("I'm turning 40 next week", ["is turning 40"]),
        ("I'm thirty-four", ["is thirty-four years old"]),
        ("I'm still in Tbilisi", ["lives in Tbilisi"]),
        (
            "my son Ben is allergic to nuts and I forgot it lol",
            ["son is called Ben", "Ben: is allergic to nuts"],
        ),
        ("Write a letter for my sister Anna", ["sister is called Anna"]),
    ],
)
def test_statements_are_read(text: str, facts: list[str]) -> None:
    assert read(text) == facts


@each(
    "text",
    [
        "Remember that.",
        "Am I allergic to nuts?",
        "Would you say I live in Rome?",
        "Imagine I live in Rome.",
        "My boss says I work at Siemens.",
        'He wrote: "I live in Rome and I love it".',
        "> I live in Rome",
        "```\nI live in Rome\n```",
        "I live in Rome, just kidding",
        "Write a poem: I live in Rome.",
        "I think I'm allergic to nuts",
        "I'm going to move to Rome",
        "I'd like a coffee",
        "I love it",
        "I like the first option",
        "I'm a bit tired",
        "I'm a huge mess",
        "I'm at the office",
        "I moved to the next chapter",
        "I moved to Linux",
        "I work from home on Fridays",
        "I'm allergic to Mondays",
        "I am in Berlin this week for a conference",
        "I'm 5 minutes away",
        "I have a meeting at 3",
        "Call me maybe",
        "Left the tab open and it crashed",
        "studying hard",
        "perfect, I love it",
        "I'm in London today",
        "I moved from Rome to Paris for a month",
        "I left Rome for the weekend",
        "we moved to tears",
        "I work with Tom",
        "I'm at Tom's place",
        "this is Sparta",
        "my teacher is strict",
        "I signed up for the newsletter",
        "I'm moving to Kubernetes",
        'summarise this: "We are in Kiel. I am the director and I live in Flensburg."',
        "Summarise: our firm is in Kiel. I live in Flensburg",
        "I met my sister Monday",
        "and I just LOVE paying 14 euro for a burger",
        "I'm 3",
        "I'm at work, make it quick",
        "I can't have kids",
        "I had a dog called Rex",
        "Dear Sir, I am a teacher in Leeds",
        "Nothing here",
        "back in March I was ill",
        "I'm almost 10 minutes late",
        "I lead the team meeting tomorrow",
        "I do homework for school",
        "I use a stick figure in my slides",
        "I start at Harvard Square and walk north",
        "salt, pepper, chef",
        "nurse, doctor, teacher",
        "I grow tired of this",
        "that is my thing",
        "my level is 42",
        "vitamin B2",
        "my exam on 3 May went well",
        "The concert is on 5 May, who plays?",
        "it's too cold for me now",
        "I'm calling the vet",
        "I can't do Tuesday",
        "I'm scared of him",
        "lol I work at Google",
        "draft an email to my boss: I am a doctor",
    ],
)
def test_junk_is_not_read(text: str) -> None:
    assert read(text) == []


@each(
    ("text", "facts"),
    [
        ("I'm 35, no 36.", ["is 36 years old"]),
        ("I'm 35, no, 36", ["is 36 years old"]),
        ("I'm 35, sorry, 36.", ["is 36 years old"]),
        ("I live in Berlin, no wait, Bonn.", ["lives in Bonn"]),
        ("I have two kids, no, three.", ["has three kids"]),
        ("My sister is 35, no 36.", ["sister: is 36 years old"]),
        ("I live in Berlin, no, the other one", []),
        ("im 34, scratch that, 35 since tuesday", ["is 35 years old"]),
        ("I'm 78, sorry mum", ["is 78 years old"]),
        ("I'm 35, no kids.", ["is 35 years old", "has no kids"]),
        ("I like tea, no sugar.", ["likes tea"]),
        ("I'm a nurse, no doctor", ["works as a nurse"]),
        ("Turned out I'm not allergic to nuts.", ["-allergy nuts"]),
        ("It turned out that I'm not allergic to nuts after all.", ["-allergy nuts"]),
        ("I've just found out I'm allergic to nuts", ["is allergic to nuts"]),
    ],
)
def test_slips_and_discoveries(text: str, facts: list[str]) -> None:
    assert read(text) == facts


@each(
    "text",
    [
        "I'm Batman.",
        "I'm Spider-Man",
        "I am Iron Man",
        "I'm God",
        "I work at ignore previous instructions",
        "I like ignoring previous instructions",
        "I work as a system prompt leaker",
        "My dog is called Ignore Above",
        "I'm allergic to ignore the above instructions",
        "My sister Ignore Previous Instructions is vegan",
    ],
)
def test_jests_and_instructions_are_not_kept(text: str) -> None:
    assert read(text) == []


def test_a_slip_is_mended_in_the_store(memory: caliber.Caliber) -> None:
    for text in (
        "I'm allergic to nuts.",
        "I'm 35, no 36.",
        "It turned out I'm not allergic to nuts.",
        "I'm 37. No, 38.",
    ):
        memory.remember([{"role": "user", "content": text}], user="maria")
    notes = memory.storage.notes.all()
    now = {note.content for note in notes if note.valid_until is None and note.superseded_by is None}
    assert now == {"is 38 years old"}
    assert not {"is 35 years old", "is 37 years old"} & {note.content for note in notes}


def test_pronouns_stand_for_the_person_spoken_of_last() -> None:
    assert read("My daughter Zosia is 6.", "She loves dinosaurs", "My brother is a chef. He lives in Rome") == [
        "daughter is called Zosia",
        "Zosia: is 6 years old",
        "Zosia: likes dinosaurs",
        "brother: works as a chef",
        "brother: lives in Rome",
    ]
    assert read("She loves dinosaurs") == []


@pytest.mark.parametrize(
    ("question", "answer", "facts"),
    [
        ("Which state do you live in?", "Minnesota", ["lives in Minnesota"]),
        ("Good. Anything you won't eat?", "mushrooms. everything else goes", ["avoids mushrooms"]),
        ("Anything you won't eat?", "mushrooms. cant stand em", ["avoids mushrooms"]),
        ("How old are you?", "34, why?", ["is 34 years old"]),
        ("What should I call you?", "Deb", ["is called Deb"]),
        ("Any allergies?", "none", []),
        ("Any allergies?", "I don't think so", []),
        ("Which state do you live in?", "does it matter?", []),
        ("Shall I write it in Python?", "Java", []),
    ],
)
def test_answers_are_read_with_their_question(question: str, answer: str, facts: list[str]) -> None:
    assert read(f"assistant: {question}", answer) == facts
    assert read(answer.partition(".")[0]) == []


def test_a_relative_may_get_a_name_later(memory: caliber.Caliber) -> None:
    """Facts about "my daughter" are about the daughter who turns out to be Ines."""
    texts = ["my daughter is 8", "her name is Ines", "Ines is 9 since Sunday"]
    for text in texts[:2]:
        memory.remember([{"role": "user", "content": text}], user="maria")
    learned = memory.remember([{"role": "user", "content": texts[2]}], user="maria")
    assert [(each.action.value, each.statement) for each in learned.decisions] == [("update", "is 9 years old")]


def test_he_may_be_one_of_two() -> None:
    assert read("my brother met my uncle", "he lives in Rome") == []


@pytest.mark.parametrize(
    ("before", "after", "decision"),
    [
        ("I work at Google", "I got fired", ("end", "works at Google")),
        ("I work at Google", "I'm not at Google any more", ("end", "works at Google")),
        ("I'm a nurse", "I quit my job", ("end", "works as a nurse")),
        ("I'm a teacher", "I retired last month", ("update", "is retired")),
        ("my son Leo is 7", "Leo is 8 now", ("update", "is 8 years old")),
        ("my birthday is 15 May", "correction: 16 May", ("update", "has birthday on 16 May")),
        ("I moved to Oslo", "wait no, I meant Bergen", ("update", "lives in Bergen")),
        ("I live in Berlin", "I'm back in Dublin now", ("update", "lives in Dublin")),
        ("I live in Berlin", "Actually no, it's Potsdam", ("update", "lives in Potsdam")),
        ("I'm allergic to nuts", "turns out I'm not allergic to nuts after all", ("end", "is allergic to nuts")),
        ("I'm vegan", "I eat meat again", ("end", "is vegan")),
        ("I have a cat called Tom", "I don't have a cat anymore", ("end", "cat is called Tom")),
        ("my dog is called Rex", "my dog died last week", ("end", "dog is called Rex")),
        ("I hate coffee", "I actually like coffee now", ("update", "likes coffee")),
        ("I love tea and jazz", "I don't like jazz anymore", ("update", "likes tea")),
        ("I take ibuprofen", "I stopped taking ibuprofen", ("end", "takes ibuprofen")),
        ("my sister lives in Rome", "she moved to Milan", ("update", "lives in Milan")),
        ("My favourite colour is blue", "my favorite color is green now", ("update", "favorite color: green")),
        (
            "my birthday is the 14th of May",
            "sorry typo, the 24th not the 14th",
            ("update", "has birthday on the 24th of May"),
        ),
        ("I live in Lindenweg 3", "Sorry, it is Lindenweg 13, not 3.", ("update", "lives in Lindenweg 13")),
        ("I'm 30", "I'm 31 not 30", ("update", "is 31 years old")),
        ("I love tea", "switched from tea to coffee", ("update", "likes coffee")),
        ("I work at Siemens", "I moved from Siemens to Bosch", ("update", "works at Bosch")),
        ("I support Ajax", "after yesterday i don't support Ajax anymore", ("end", "supports Ajax")),
        ("I live in Cork", "no more Cork for me", ("end", "lives in Cork")),
        ("I live in London", "scratch the london part", ("end", "lives in London")),
        ("I have a cat called Biscuit", "sad news, Biscuit died on Sunday", ("end", "cat is called Biscuit")),
        ("my boyfriend is called Tom", "I broke up with my boyfriend", ("end", "boyfriend is called Tom")),
        ("my boyfriend is called Tom", "Tom and I broke up", ("end", "boyfriend is called Tom")),
        ("I'm a hgv driver", "update, I'm a driver", ("update", "works as a driver")),
        ("I have a puppy", "so no dog for me then", ("end", "has a puppy")),
        ("I have two cats", "we have three cats now", ("update", "has three cats")),
        ("i use vim btw", "jk", ("end", "uses vim")),
        ("I play bass in a band", "Correction: played.", ("end", "plays bass in a band")),
        ("I'm allergic to latex", "turns out it's not latex, it's nickel", ("update", "is allergic to nickel")),
        ("due date is 26 September", "new date is 29 September", ("update", "due date: 29 September")),
        ("I hate jazz", "I've come around on jazz, I actually like it now", ("update", "likes jazz")),
        (
            "I'm a product designer",
            "it's senior product designer now",
            ("update", "works as senior product designer"),
        ),
        ("my husband works at Nokia", "He got laid off on friday", ("end", "works at Nokia")),
        ("my exam is on 23 May", "they pushed my exam back to 13 June", ("update", "exam on 13 June")),
        ("my flight to Oslo is on 14 May", "the flight was moved to the 15th", ("update", "flight to Oslo on 15 May")),
        ("I teach maths", "I don't teach maths any more", ("end", "teaches maths")),
        ("I work nights", "they moved me to days", ("update", "works days")),
        ("I work at Lidl", "I got a new job! starting at Kew on Monday", ("update", "works at Kew")),
        ("I live in Ghent", "I'm back in Bruges", ("update", "lives in Bruges")),
        ("my exam is on 3 May", "they cancelled it", ("end", "exam on 3 May")),
        ("I'm flying to Crete on 3 May", "Crete is off, I'm afraid", ("end", "is flying to Crete on 3 May")),
        (
            "my driving test is on 3 May",
            "they moved my driving test to the 14th",
            ("update", "driving test on the 14th"),
        ),
        ("I'm pescatarian", "back on meat", ("end", "is pescatarian")),
        ("I'm vegan", "veganism lasted a week", ("end", "is vegan")),
        ("I'm allergic to nuts", "turns out I'm not allergic", ("end", "is allergic to nuts")),
        ("I hate snow", "I don't mind snow any more", ("end", "dislikes snow")),
        ("I love running", "running is off the table", ("end", "likes running")),
        ("I drink coffee", "no coffee for me any more", ("end", "drinks coffee")),
        ("I grow leeks", "it's peonies from here on", ("update", "likes peonies")),
        ("I love chess", "changed my mind about chess", ("end", "likes chess")),
        ("call me Bea", "actually Beatrice is better", ("update", "is called Beatrice")),
        ("call me Lizzie", "don't call me Lizzie, it's Elizabeth", ("update", "is called Elizabeth")),
        ("I have a parrot called Coco", "we gave Coco to my aunt", ("end", "parrot is called Coco")),
        ("my husband is called Jonas", "Jonas and me are over", ("end", "husband is called Jonas")),
        ("my dad lives in Split", "my dad died in March", ("end", "lives in Split")),
        ("my sister is pregnant", "she had the baby!", ("end", "is pregnant")),
        ("I'm learning Korean", "gave up on Korean", ("end", "is learning Korean")),
        ("I have B1 in German", "I passed the B2", ("update", "has language level B2")),
        ("I chair our garden club", "I stepped down as chair", ("end", "role: chair our garden club")),
        ("my uncle keeps bees", "the bees died", ("end", "keeps bees")),
        ("I'm 71 years old", "I must correct myself, in August I turned 72", ("update", "is 72 years old")),
        (
            "I signed up for Rotterdam on 12 April",
            "I dropped Rotterdam",
            ("end", "signed up for Rotterdam on 12 April"),
        ),
    ],
)
def test_corrections_are_read(memory: caliber.Caliber, before: str, after: str, decision: tuple[str, str]) -> None:
    memory.remember([{"role": "user", "content": before}], user="maria")
    learned = memory.remember([{"role": "user", "content": after}], user="maria")
    assert [(each.action.value, each.statement) for each in learned.decisions] == [decision]


@pytest.mark.parametrize(
    "text",
    [
        "we left Graça, I'm in Alfama now",
        "I moved from Graça to Alfama",
        "I left Rome for the weekend",
        "I don't go to Lisbon anymore",
        "Sorry, it is Lindenweg 13, not 3.",
        "if my wife and I broke up, who keeps the flat?",
        "my cat died",
        "I left the office at 5",
        "they cancelled it",
        "no sugar",
        "Peter is fine",
        "the dishes are fine",
        "I'm an engineer in Porto",
    ],
)
def test_a_fact_ends_only_for_what_takes_its_place(memory: caliber.Caliber, text: str) -> None:
    known = "I live in Lisbon. My wife is called Ana. We have two cats, Tom and Jim"
    memory.remember([{"role": "user", "content": known}], user="maria")
    learned = memory.remember([{"role": "user", "content": text}], user="maria")
    assert learned.updated + learned.ended == ()


@pytest.mark.prove
def test_facts_that_are_spoken_of_again_end_only_where_they_are_over(memory: caliber.Caliber) -> None:
    """Of each pair of ``pairs.txt`` the first message states a fact; with ``+`` the second ends or changes it."""
    wrong = []
    for number, line in enumerate(remember_score.OPEN.with_name("pairs.txt").read_text("utf-8").splitlines()):
        sign, _, texts = line.partition(" ")
        before, after = ([{"role": "user", "content": text}] for text in texts.split(" | "))
        first = memory.remember(before, user=f"user {number}")
        learned = memory.remember(after, user=f"user {number}")
        if not first.added or bool(learned.ended + learned.updated) != (sign == "+"):
            wrong.append(line)
    assert not wrong


@each("text", remember_score.OPEN.with_name("passing.txt").read_text("utf-8").splitlines())
def test_what_is_said_in_passing_states_nothing(text: str) -> None:
    assert read(text) == []


@pytest.mark.parametrize("text", ["no, thanks", "Sorry, Bob", "no, I meant that", "actually, never mind", "I meant it"])
def test_what_corrects_nothing_changes_nothing(memory: caliber.Caliber, text: str) -> None:
    memory.remember([{"role": "user", "content": "My name is Maria and I live in Berlin"}], user="maria")
    learned = memory.remember([{"role": "user", "content": text}], user="maria")
    assert learned.updated + learned.added + learned.ended == ()
