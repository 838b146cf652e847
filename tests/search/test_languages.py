"""A question in the language of a fact finds it by words and stems; in another language by the model of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import caliber

OFF: dict[str, Any] = {"embedding_provider": None}
FACTS = (
    ("Mein Kater heißt Moritz, und er frisst gern Fisch.", "Wie heißt mein Kater?"),
    ("Meine Schwester wohnt seit März in Graz.", "Wo wohnen meine Schwestern?"),
    ("Mon chat s'appelle Félix et il dort beaucoup.", "Comment s'appelle mon chat ?"),
    ("Ma sœur habite à Lyon depuis mars.", "Où habitent mes sœurs ?"),
    ("Mi gato se llama Copito y duerme mucho.", "¿Cómo se llama mi gato?"),
    ("Mi hermana vive en Granada desde marzo.", "¿Dónde viven mis hermanas?"),
    ("うちの猫の名前はミケです。", "うちの猫の名前は何ですか？"),
    ("姉は大阪に住んでいます。", "姉はどこに住んでいますか？"),
    ("اسم قطتي هو ميشو وتحب السمك.", "ما اسم قطتي؟"),
    ("أختي تسكن في بيروت.", "أين تسكن أختي؟"),
    ("मेरी बिल्ली का नाम मीनू है।", "मेरी बिल्ली का नाम क्या है?"),
    ("मेरी बहन जयपुर में रहती है।", "मेरी बहन कहाँ रहती है?"),
)
NOISE = ("We had soup for lunch.", "The meeting is on Friday.", "I like to walk in the mountains.")


class Multilingual:
    """A model in which a word and its translation have one direction; the others have one of their own."""

    model_id, dimensions = "multilingual", 64
    _MEANT = (("perro", "dog"), ("llama", "called"), ("hermana", "sister"), ("vive", "live"))

    def embed(self, text: str) -> Any:
        out = np.zeros(64, np.float32)
        out[[at for at, words in enumerate(self._MEANT) if any(word in text.lower() for word in words)]] = 1
        if not out.any():
            out[8 + sum(text.encode()) % 56] = 1
        return out / np.linalg.norm(out)

    def embed_batch(self, texts: Sequence[str]) -> Any:
        return np.stack([self.embed(text) for text in texts])


def told(path: Path, texts: Sequence[str], provider: Any = None, **overrides: Any) -> caliber.Caliber:
    """Return a memory in which each text was said in a talk of its own."""
    config = caliber.profiles.chat_companion(path / "memory.db", **overrides)
    memory = caliber.open(config, create=True, embedding_provider=provider)
    for text in texts:
        task = memory.start_trajectory("a talk", user="ana").trajectory_id
        memory.remember([{"role": "user", "content": text}], user="ana", task=task)
    return memory


def window(memory: caliber.Caliber, question: str) -> str:
    """Return the window of a talk that begins with a question, without the question."""
    task = memory.start_trajectory("a question", user="ana").trajectory_id
    memory.remember([{"role": "user", "content": question}], user="ana", task=task)
    memory.flush()
    text = memory.assemble_context(task).text
    return text[: text.rindex(question)]


def test_a_question_finds_a_fact_of_its_language(tmp_path: Path) -> None:
    # issue 40, item 13
    with told(tmp_path, [*NOISE, *[fact for fact, _ in FACTS]], **OFF) as memory:
        assert [fact for fact, question in FACTS if fact not in window(memory, question)] == []


def test_a_multilingual_model_finds_a_fact_of_another_language(tmp_path: Path) -> None:
    # issue 40, item 13
    facts = ("Mi perro se llama Canelo.", "Mi hermana vive en Granada.")
    changes = {"embedding_provider": {"provider_type": "hash", "model": "m", "dimensions": 64, "options": {}}}
    with told(tmp_path, [*NOISE, *facts], Multilingual(), **changes, **{"vector.dimensions": 64}) as memory:
        assert facts[0] in window(memory, "What is my dog called?")
        assert facts[1] in window(memory, "Where does my sister live?")
