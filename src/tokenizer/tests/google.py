"""Google's side of the comparison: trains small models of several kinds, and encodes random texts with each and with the given models.

usage: google.py FOLDER TEXTS MODEL...

Writes NAME.model and NAME.json, a list of [text, ids], for each model into FOLDER.
"""

import json
import random
import sys
from pathlib import Path

import sentencepiece

folder, count, given = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
random.seed(7)
words = "the a walking camera pans over slow motion panda plays guitar neon city rain, lights. Cat's wide-shot 4k ".split()
corpus = [" ".join(random.choices(words, k=random.randint(3, 20))) for _ in range(400)]
corpus += ["Über façade naïve ﬁne ｆｕｌｌ １２３ 中文 字幕 日本語 かな 한국어 العربية हिन्दी ไทย 🐼 🎸 ½ ² Ω"] * 40
(folder / "corpus.txt").write_text("\n".join(corpus), encoding="utf-8")
kinds = {
    "unigram": {},
    "bytes": {"byte_fallback": True},
    "identity": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": False},
    "folding": {"normalization_rule_name": "nmt_nfkc_cf"},
    "symbols": {"user_defined_symbols": ["<sep>", "pan", "panda plays", "４"]},
    "suffix": {"treat_whitespace_as_suffix": True},
}
for name, options in kinds.items():
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus.txt"),
        model_prefix=str(folder / name),
        vocab_size=420 if name == "bytes" else 200,
        hard_vocab_limit=False,
        character_coverage=0.98,
        minloglevel=2,
        **options,
    )
for path in given:
    (folder / "given.model").write_bytes(Path(path).read_bytes())


def text():
    """Returns words, characters of many scripts and kinds of spaces, and any characters at all."""
    parts = []
    for _ in range(random.randint(0, 12)):
        kind = random.random()
        if kind < 0.45:
            parts.append(random.choice(words))
        elif kind < 0.6:
            parts.append(random.choice([" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2009", "\u200b", "\u200d", "\u0085", "▁"]))
        elif kind < 0.75:
            parts.append(random.choice("àéîõüßşçñøłđǅﬁﬂ½²³™①㍿ｶﾞｱＡ１～가각힣が한Ω中文字🐼🎸👩‍👧é́̂ạ̊กำहि"))
        elif kind < 0.85:
            parts.append("".join(chr(random.choice([0x300, 0x301, 0x323, 0x1100, 0x1161, 0x11A8, 0x61, 0x65])) for _ in range(4)))
        elif kind < 0.95:
            parts.append("".join(chr(random.randint(1, 0xD7FF)) for _ in range(random.randint(1, 5))))
        else:
            parts.append("".join(chr(random.randint(0xE000, 0x10FFFF)) for _ in range(random.randint(1, 3))))
        if random.random() < 0.5:
            parts.append(" ")
    return "".join(parts)


texts = [text() for _ in range(count)]
for path in sorted(folder.glob("*.model")):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    rows = [[each, processor.encode(each)] for each in texts]
    path.with_suffix(".json").write_text(json.dumps(rows), encoding="utf-8")
