"""Queries that a conversation cannot answer: what search must find nothing for, and what is only talk."""

from __future__ import annotations


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


EVERYDAY = _lines(
    """
    What is the boiling point of mercury?
    How do I change a flat tyre on a lorry?
    Who won the 1998 football world cup?
    What is the capital of Mongolia?
    How many legs does a lobster have?
    Which vaccine prevents yellow fever?
    How do volcanoes form?
    What is the exchange rate of the yen?
    Why is the sky blue?
    How long does it take light to reach Neptune?
    What year did the Berlin Wall fall?
    How do I unclog a kitchen drain?
    What is the square root of 1764?
    Which element has the symbol Sb?
    Who composed The Magic Flute?
    How tall is Mount Kilimanjaro?
    What does the word ephemeral mean?
    How do I file a tax return in Portugal?
    Which river flows through Baghdad?
    What is the airspeed of a swallow?
    How is parmesan cheese aged?
    When was the printing press invented?
    What is a derivative in calculus?
    How do bees make honey?
    Which planet has the most moons?
    How do I remove red wine from a carpet?
    What is the speed limit on German motorways?
    Who wrote Crime and Punishment?
    How much does a grand piano weigh?
    What is the difference between a crocodile and an alligator?
    How do I reset the router password?
    Which airline flies direct to Reykjavik?
    What is the population of Nairobi?
    How deep is the Mariana Trench?
    What time does the post office close?
    Is it going to rain tomorrow in Oslo?
    How do I convert ounces to grams?
    What is the best way to boil an egg?
    Which insurance covers hail damage?
    What are the symptoms of scurvy?
    How do I install a dishwasher?
    Who is the prime minister of Canada?
    What is the plot of Macbeth?
    How does a diesel engine work?
    Where can I buy snow chains?
    What is the recipe for hollandaise sauce?
    How many calories are in a croissant?
    What is the tallest building in Dubai?
    When is the next lunar eclipse?
    How do I sharpen a chainsaw?
    What does an oncologist do?
    How do I prune roses in winter?
    Which battery fits a 2012 Honda Civic?
    What is the atomic weight of uranium?
    How do submarines dive?
    What is the currency of Vietnam?
    Who painted the Sistine Chapel?
    How do I tie a bowline knot?
    What is the melting point of aluminium?
    Which countries border Paraguay?
    How do I write a cover letter?
    What is my blood type?
    What is my passport number?
    Which dentist did I see last?
    What is the wifi password of the cabin?
    Where did I park the car?
    What colour is my umbrella?
    How much rent do I pay?
    What is my shoe size?
    Who is my landlord?
    Which gym do I go to?
    What is my bank's phone number?
    When does my lease end?
    What medication am I allergic to?
    What is the name of my cat?
    Where do I keep the spare key?
    How much did the laptop cost?
    What is my grandmother's maiden name?
    When is my dentist appointment?
    Which seat did I book on the train?
    What is my licence plate?
    How much salt goes into the brine?
    Which bus goes to the airport?
    What did the plumber charge?
    Who fixed the boiler?
    What is our wedding anniversary?
    Which school do my children go to?
    What is the code of the garage door?
    When was the smoke detector last tested?
    What is the serial number of the printer?
    How do I compile a kernel module?
    What is the syntax of a lambda in Haskell?
    Why does my Docker container exit immediately?
    How do I revert a git commit?
    What is the default port of Redis?
    How do I centre a div?
    Which sorting algorithm is stable?
    What is the difference between TCP and UDP?
    How do I mock a function in Jest?
    What is a monad?
    How do I configure nginx as a reverse proxy?
    What does error 0x80070005 mean?
    How do I find the length of a linked list?
    Which Kubernetes version is deprecated?
    How do I renew a TLS certificate?
    What is the time complexity of quicksort?
    How do I parse XML in Rust?
    What is a foreign key?
    How do I enable two factor authentication?
    What is the maximum size of an S3 object?
    How do I exit vim?
    What is the meaning of HTTP status 418?
    How do I undo a rebase?
    Which licence does Blender use?
    How do I allocate shared memory in CUDA?
    What is the boiling temperature of nitrogen?
    How do penguins keep warm?
    Which bird lays the largest egg?
    What is photosynthesis?
    How old is the universe?
    How is glass made?
    What causes the northern lights?
    How do magnets work?
    What is dark matter?
    How many bones are in the human body?
    What is the half-life of carbon-14?
    How does a nuclear reactor work?
    What is the pH of lemon juice?
    How fast does a cheetah run?
    How do vaccines work?
    What is the function of the spleen?
    What is an isotope?
    How do tides work?
    What is the Doppler effect?
    How are diamonds formed?
    Why do cats purr?
    How long do elephants live?
    What do koalas eat?
    How many teeth does a shark have?
    What is the largest desert?
    Which ocean is the deepest?
    Where is the Great Barrier Reef?
    What language is spoken in Suriname?
    What is the highest waterfall?
    Which country has the most islands?
    Where do polar bears live?
    What is the time zone of Samoa?
    How long is the Great Wall of China?
    What is the national dish of Georgia?
    Which city hosted the 1964 Olympics?
    Who invented the telephone?
    Who was the first emperor of Rome?
    When did the Titanic sink?
    Who signed the Magna Carta?
    What caused the First World War?
    When was the Ottoman Empire dissolved?
    Who discovered penicillin?
    When did Napoleon die?
    What was the Marshall Plan?
    Who was Cleopatra's father?
    What is the Rosetta Stone?
    When was the euro introduced?
    Who built the pyramids?
    What is the Hanseatic League?
    Who directed Seven Samurai?
    Which band recorded Dark Side of the Moon?
    How many strings does a cello have?
    What key is the Moonlight Sonata in?
    Who played Tony Soprano?
    How many seasons of Fargo are there?
    Which film won best picture in 1975?
    Who wrote the Iliad?
    What is a haiku?
    What is the longest novel ever written?
    Who sang Bohemian Rhapsody?
    How many players are in a rugby team?
    What is offside in hockey?
    How long is a marathon?
    Who holds the hundred metre record?
    What is a birdie in golf?
    How is a tennis set scored?
    Which country invented badminton?
    What is the weight of a shot put?
    How many rounds are in a boxing match?
    What is the offside rule?
    Which wood is best for a cutting board?
    How do I fix a squeaky hinge?
    How do I remove a stripped screw?
    What grit of sandpaper should I use?
    How do I wire a three-way switch?
    How do I descale a kettle?
    What is the right tyre pressure?
    How do I bleed a radiator?
    How do I grow tomatoes indoors?
    When should I plant garlic?
    How do I get rid of aphids?
    How often should I water a cactus?
    What is the best compost ratio?
    How do I dry oregano?
    How long does rice keep in the fridge?
    How do I substitute buttermilk?
    What temperature is medium rare?
    How do I poach a pear?
    What is the difference between jam and marmalade?
    How do I make sourdough starter?
    Which flour is used for pasta?
    How long do I roast a goose?
    What goes into a Waldorf salad?
    How do I open a coconut?
    What is the interest rate of the central bank?
    How do I open a brokerage account?
    What is a put option?
    How is inflation measured?
    What is the VAT rate in Hungary?
    How do I dispute a parking ticket?
    What is the minimum wage in Ireland?
    How do I apply for a visa to India?
    What documents do I need for a mortgage?
    How do I register a trademark?
    What is the statute of limitations for fraud?
    What is a power of attorney?
    How do I contest a will?
    How do I say good morning in Swahili?
    What is the plural of octopus?
    What is the Latin word for shield?
    How do I conjugate the verb aller?
    What is the past tense of strive?
    How many letters are in the Cyrillic alphabet?
    What does RSVP stand for?
    Which stars make up Orion?
    How far is the moon?
    What is a light year?
    When does Halley's comet return?
    Which probe left the solar system first?
    How do rockets steer in space?
    """
)
"""Questions about the world, about programs, and about a person of whom nothing is stored."""

GIBBERISH = _lines(
    """
    zzzzqqq
    asdf
    asdfghjkl
    qwertyuiop
    xkcdq
    blorp
    flimflamzor
    zxcvbnm
    hjkl hjkl
    wqeoiruqwe poiqwuer
    aaaaaaa
    bbbbb ccccc
    jfkdls;a
    xq7 zz9 kk3
    lorem ipsum dolor sit amet
    qqq www eee
    mxyzptlk
    grbl frzz
    vnmrtq wopzx lkjhg
    test123xyz
    0x9f3b2c
    8347298374
    !!!???
    @@@###
    ....
    ñññ øøø
    жщъыь
    漢字仮名
    snarfblatt
    quizzaciously zorbed
    plugh xyzzy
    foobarbazqux
    rtyuio fghjk vbnm
    ooooooo
    hgfdsa poiuyt
    kzrt
    gnip gnop
    wibble wobble
    zzz
    qx
    yyyyyyyyyyyy
    tttt rrrr eeee
    jjjj
    abcdefgh
    xyzabc
    zaphodbeeble
    krznk tvlpq
    brillig slithy toves
    dfgdfg dfgdfg
    lkjsdf sdflkj
    """
)
"""No words at all, and words of no language."""

TALK = _lines(
    """
    the
    a
    please tell me
    tell me
    tell me please
    can you tell me
    could you please tell me
    please
    hello
    hi
    hi there
    hey
    hello there
    good morning
    thanks
    thank you
    thank you very much
    thanks a lot
    ok
    okay
    yes
    no
    yes please
    no thanks
    sure
    go on
    continue
    what
    why
    how
    what is it
    what about it
    what do you mean
    do you know
    do you know that
    do you remember
    can you remember
    i don't know
    can you help me
    help me
    help
    i have a question
    may i ask you something
    let me know
    please let me know
    and then
    so what
    what else
    tell me more
    please continue
    please go ahead
    what was that
    who is it
    where is that
    is it
    was it
    could you
    would you please
    i want to know
    i would like to know
    can i ask a question
    please answer
    please answer my question
    just tell me
    show me
    give me
    say it again
    one more time please
    it
    of the
    to be or not to be
    great
    nice
    cool
    wow
    sounds good
    """
)
"""Greetings, thanks and requests that name no subject."""
