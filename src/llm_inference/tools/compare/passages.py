"""Texts for the editing workload: the model is asked to write each again, so that its answer repeats what it was given.

Beginning the second copy with the first words of the passage makes even a small model go on copying.
"""

from __future__ import annotations

PASSAGES = (
    "The harbour wakes before the town does. Fishing boats come in with the tide, and the first crates of "
    "mackerel are on the quay while the street lamps are still lit. A clerk with a pencil behind her ear counts "
    "the crates and writes the number of each boat into a ledger that her grandfather began. By seven the ice "
    "lorry has been, the gulls have given up, and the only sound is of water against the wall. Visitors who "
    "arrive at nine wonder why everybody here looks as if the day was over. For most of them it is: they go home,"
    " draw the curtains and sleep until the evening tide calls them out again.",
    "A bicycle is repaired from the ground up. Begin with the tyres, since a soft tyre hides every other fault. "
    "Turn each wheel slowly and watch the gap between rim and brake; if it narrows on one side, tighten the "
    "spokes that pull the other way, a quarter turn at a time. Clean the chain before you oil it, and wipe away "
    "what the chain does not take. Check the bolts of the handlebar last, because they are the easiest to forget "
    "and the worst to lose. When everything is done, ride around the block once without hands on the brakes and "
    "listen. A good bicycle makes one sound only, and that is the sound of the tyres on the road.",
    "The committee met on the first Tuesday of March to decide about the old library. Three plans lay on the "
    "table. The first would keep the reading room and sell the upper floors; the second would move all books to "
    "the school and rent out the house; the third, which nobody had expected, came from the caretaker, who "
    "proposed to open the building at night. People who work during the day, he wrote, have nowhere quiet to go "
    "after supper. The committee asked him what the light would cost. He had counted the lamps and knew the "
    "answer to the penny. The third plan was accepted with one vote against it, and the library has been open "
    "until midnight ever since.",
    "Bread needs four things and one of them is time. Mix flour, water and salt until no dry flour is left, then "
    "add the yeast and leave the bowl alone for an hour. Fold the dough from the four sides into the middle, turn"
    " it over and wait again. After the third folding it should feel like an ear lobe and hold its shape on the "
    "board. Heat the oven with a stone in it for as long as you can bear, and put a cup of water on the floor of "
    "the oven when the bread goes in. It is done when it sounds hollow underneath. Let it cool before you cut it,"
    " although nobody in the history of this recipe has ever managed to.",
    "Our survey of the valley took nine days. We measured the height of the river at eleven places, always at the"
    " same hour, and compared the numbers with those of the year before. At the upper bridge the water stood "
    "lower by the width of a hand; at the mill it had not changed at all. Between these two places there is a "
    "field that floods every spring, and in this field we found the reason. The farmer had closed a ditch that "
    "his father had dug, and the water, which has no memory of ditches, had looked for a new way and found it "
    "under the road. We recommend that the ditch be opened again before the road gives way.",
    "The clock on the tower was built without a face. For two hundred years it told the time by its bells alone, "
    "one stroke for every quarter and the full count on the hour, and people in the fields below knew when to eat"
    " and when to go home. The face was added by a mayor who was hard of hearing. He paid for it himself and had "
    "his name painted under the number six, where the hands cover it for half of every hour. The bells were never"
    " taken down. They are five minutes late by now, and most people in the town still set their watches by them "
    "rather than by the face, which is right.",
)
_LEAD = 6


def editing_prompt(passage: str) -> str:
    """Asks for `passage` again and begins the answer."""
    begin = " ".join(passage.split()[:_LEAD])
    return f"Text:\n{passage}\n\nThe same text, with its spelling checked:\n{begin}"
