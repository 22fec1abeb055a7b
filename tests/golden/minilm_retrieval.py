#!/usr/bin/env python3
"""Makes minilm_retrieval.json: 200 documents, 24 queries, and how sentence-transformers ranks them.

    minilm_retrieval.py MODEL_DIR OUT.json

MODEL_DIR: all-MiniLM-L6-v2 (tests/models/get fetches it). Needs sentence-transformers; CPU, float32. The
documents are made here, 8 kinds of things x 5 of each x 5 facts, some in other lengths, languages and
alphabets. "scores" are cosines of all documents, in their order.
"""
import json
import sys

from sentence_transformers import SentenceTransformer

KINDS = [
    ("animal", ["heron", "badger", "octopus", "swift", "salmon"],
     ["The {0} feeds mostly at dawn, when the water or the meadow is still.",
      "Biologists counted {0}s along the river for eleven years and found their number halved.",
      "A young {0} stays with its parents, or alone, until the first winter.",
      "How long does a {0} live? In zoos up to {1} years, in the wild rarely half of that.",
      "Der Name {0} steht auf der Liste der geschützten Arten."]),
    ("town", ["Lisbon", "Trondheim", "Kyoto", "Cusco", "Tbilisi"],
     ["{0} lies on hills above the water and has {1} bridges.",
      "The night train to {0} leaves at ten past eleven and has sleeping cars.",
      "Rents in {0} rose by {1} percent within two years, and students moved to the suburbs.",
      "In the old quarter of {0} workshops still make tiles, paper and knives by hand.",
      "La mairie de {0} a décidé de fermer le centre aux voitures."]),
    ("dish", ["lentil soup", "rye bread", "saffron rice", "plum cake", "pickled cabbage"],
     ["For {0} you need {1} grams of the main ingredient, salt, water and patience.",
      "{0} keeps for several days in the cold and tastes better on the second.",
      "My grandmother never measured anything when she made {0}.",
      "People who cannot eat gluten should ask before they order {0}.",
      "The recipe for {0} was first printed in a cookbook of 18{1}."]),
    ("instrument", ["cello", "oboe", "pipe organ", "accordion", "kettledrum"],
     ["The {0} is tuned before the concert, to the note that the oboe gives.",
      "Learning the {0} as an adult takes about {1} hours before it sounds like music.",
      "A luthier or a workshop can repair the {0} if the wood has cracked.",
      "The concerto for {0} ends with a slow movement in a minor key.",
      "Insurance for a {0} costs more than the strings or reeds of a year."]),
    ("device", ["heat pump", "router", "3D printer", "pacemaker", "wind turbine"],
     ["The {0} stopped with error {1}: check the cable, then restart it.",
      "A {0} of this size draws {1} watts while it is idle.",
      "Firmware 4.{1} of the {0} closes a hole through which anyone could log in.",
      "Engineers measured the temperature of the {0} every ten minutes for a month.",
      "The warranty of the {0} ends when its seal has been broken."]),
    ("illness", ["migraine", "asthma", "iron deficiency", "shingles", "sleep apnoea"],
     ["Typical signs of {0} are found in one of {1} adults.",
      "The doctor asked since when she had had {0} and which medicine helped.",
      "A large study found that exercise eases {0} in most patients.",
      "Children with {0} may take part in sports, with a plan for emergencies.",
      "There is no vaccine that prevents every case of {0}."]),
    ("law", ["tenancy contract", "inheritance", "data protection", "working hours", "patent"],
     ["The court decided on {0} in case {1} of last year.",
      "Anyone who signs a paper about {0} without reading it can withdraw within fourteen days.",
      "The new act on {0} comes into force in January.",
      "A lawyer who knows {0} well costs about {1}0 euros an hour.",
      "Questions about {0} are answered by the office on the second floor."]),
    ("sky", ["comet", "solar eclipse", "neutron star", "aurora", "meteor shower"],
     ["The {0} can be seen from the northern hemisphere on the {1}th of the month.",
      "Photographs of the {0} need a tripod and an exposure of {1} seconds.",
      "Ancient chronicles took the {0} for a warning.",
      "Physicists explain the {0} with gravity, plasma and a good deal of mathematics.",
      "天文学者たちは {0} を何年も観測した。"]),
]
QUERIES = ["how old do herons get", "train connection to Kyoto at night", "is rye bread safe without gluten",
           "repairing a cracked cello", "my router shows an error code", "symptoms of migraine in adults",
           "withdrawing from a rental agreement", "when is the next eclipse visible",
           "decline of salmon in rivers", "car-free city centre", "old recipes in printed cookbooks",
           "how hard is it to learn the accordion", "security update for a 3D printer",
           "does sport help against asthma", "price of legal advice on patents",
           "what did people in the past think of comets", "housing costs", "handcrafted goods",
           "protected species", "standby power consumption", "music in a minor key",
           "prevention by vaccination", "new legislation next year", "astronomy photography"]


def documents():
    docs, n = [], 7
    for _, names, facts in KINDS:
        for name in names:
            for fact in facts:
                n = (n * 37 + 11) % 89
                docs.append(fact.format(name, 10 + n))
    return docs


def main():
    docs = documents()
    assert len(docs) == 200 and len(set(docs)) == 200
    m = SentenceTransformer(sys.argv[1], device="cpu")
    d, q = m.encode(docs), m.encode(QUERIES)
    scores = [[round(float(s), 7) for s in row] for row in (q.astype("float64") @ d.astype("float64").T)]
    json.dump({"documents": docs, "queries": QUERIES, "scores": scores}, open(sys.argv[2], "w"),
              ensure_ascii=False, separators=(",", ":"))
    for text, row in list(zip(QUERIES, scores))[:6]:
        print(text, "->", docs[max(range(200), key=row.__getitem__)])


main()
