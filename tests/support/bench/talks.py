"""A small conversation with questions, in LoCoMo's form."""

from __future__ import annotations

from typing import Any

TALK: dict[str, Any] = {
    "speaker_a": "Ines",
    "speaker_b": "Tomas",
    "session_1_date_time": "1:56 pm on 8 May, 2023",
    "session_1": [{"speaker": "Ines", "dia_id": "D1:1", "text": "I adopted a greyhound from the shelter last week."},
                  {"speaker": "Tomas", "dia_id": "D1:2", "text": "Lovely! What is its name?"},
                  {"speaker": "Ines", "dia_id": "D1:3", "text": "Biscuit.", "blip_caption": "a grey dog on a sofa"}],
    "session_10_date_time": "9:05 am on 1 January, 2024",
    "session_10": [{"speaker": "Tomas", "dia_id": "D10:1", "text": "My telescope arrived, Saturn looked wonderful."},
                   {"speaker": "Ines", "dia_id": "D10:2", "text": "Which telescope did you buy?"}],
    "session_2_date_time": "12:30 am on 3 June, 2023",
    "session_2": [{"speaker": "Tomas", "dia_id": "D2:1", "text": "The marathon in Lisbon was exhausting."}],
    "qa": [
        {"question": "Where did Tomas run a marathon?", "answer": "Lisbon", "evidence": ["D2:1"], "category": 4},
        {"question": "What did Ines adopt?", "answer": "a dog", "evidence": ["D1:1; D1:3", "D9:9"], "category": 1},
        {"question": "Who never ran?", "answer": "-", "evidence": ["D2:1"], "category": 5},
        {"question": "What lacks evidence?", "answer": "-", "evidence": [], "category": 4},
        {"question": "What has evidence elsewhere?", "answer": "-", "evidence": ["D7:1"], "category": 4},
    ],
}  # fmt: skip
