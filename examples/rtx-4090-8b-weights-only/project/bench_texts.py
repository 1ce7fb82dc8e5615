"""Prompts of real text, as many tokens as are asked for, no two with the same beginning."""

import random
from pathlib import Path

from prompts import Prompts

TEXT = """\
The river had been rising since Monday, and by Thursday the lower fields stood under a hand of brown water. Nobody in
the village was surprised. The old people said that it came every ninth year, the young ones that it came whenever the
dam upstream was opened without a warning, and the schoolteacher, who kept a notebook of such things, said that both
were wrong: there was no pattern at all, only weather, and a valley shaped like a funnel.

A good loaf needs four things, and three of them are time. Mix flour, water and a little salt until no dry patches are
left, and leave the dough alone for an hour. Fold it over itself from each side, then leave it again. What happens in
between is chemistry: two proteins in the flour find each other in the water and link into a net, and that net holds
the gas that the yeast gives off. Kneading only makes this faster. Patience makes it better.

In the second experiment the sensors were moved two metres further from the pump, and the readings settled within a
minute instead of ten. We had expected noise from the motor, but the error followed the temperature of the pipe. After
the pipe was wrapped, the difference between the two instruments fell below one part in a thousand, which is less than
either of them can resolve. The correction that earlier reports recommend is therefore not needed.

Dear committee, I am writing about the path behind the library. Since the new houses were finished it has become the
shortest way to the station, and in the evening two or three hundred people use it in an hour. There are no lamps, and
when it rains the middle of it is a puddle. I do not ask for a road. Gravel, a drain, and four lights would do, and
from what I read in the budget there is money left for work of this size. I would be glad to show you the place.

A sorting algorithm is stable if items that compare as equal keep the order in which they came. That sounds like a
detail until a table is sorted by date and then by name: with a stable method every name still has its dates in order,
and with another one they are shuffled. Merge sort is stable by its nature, because it takes from the left half when
both are equal. Quicksort is not, unless it is given a second array, which costs the memory that made it attractive.

She had learned to read the harbour by sound. The ferry had two notes, the second lower; the fishing boats coughed; and
the pilot's launch made no noise but a hiss along the hull. In fog she could tell from her kitchen who was coming in
and how heavily they were loaded, and her husband, who could not, said it was a kind of lie. But she was right about
the grain ship, an hour before it showed its lights, and after that he asked her before he took the boat out.

Glass is made of sand, soda and lime, and it has been for four thousand years. Sand alone melts only in a very hot fire,
so soda is added to bring the melting point down. The result would dissolve slowly in water; lime prevents that. What
the recipe does not say is how slowly it has to cool. If the outside hardens while the inside still shrinks, the piece
is under strain for the rest of its life, and one day, at a touch, it flies apart.

The question before the court was narrow. A tenant had paid the rent on the first working day of each month for eleven
years, and the contract named the first day. Was the landlord, who had accepted every payment, free to object in the
twelfth year? The judge found that he was not. What two parties do without complaint for so long becomes the meaning of
what they wrote, and whoever wants to return to the letter has to say so beforehand, and give the other side time.

Most stars are smaller than the sun, and most of them will outlive it by far. A red dwarf burns so slowly that none has
ever died; the universe is not old enough. The bright stars that we can name are the exceptions. They were made in the
same clouds, a few out of every hundred, and they spend in ten million years what a dwarf will spread over ten million
times ten million. Seen from a distance a galaxy shines with the light of what it is about to lose.
"""
"""Written for this file."""


class Texts:
    """Texts of a number of tokens, each of which begins at another word."""

    def __init__(self, config: dict, here: Path, seed: int) -> None:
        self.prompts = Prompts(config)
        self.words = TEXT.split()
        self.random = random.Random(seed)
        self.begun = 0

    def draw(self, tokens: int) -> str:
        """One that nothing was drawn like before: a server that keeps beginnings has to read all of it."""
        start = self.random.randrange(len(self.words))
        self.begun += 1
        words = [f"{self.begun}.", *self.words[start:], *self.words[:start]]
        text = " ".join(words * (1 + 2 * tokens // len(words)))
        return self.prompts.decode(self.prompts.encode_text(text)[:tokens])
