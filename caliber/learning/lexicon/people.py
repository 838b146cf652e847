"""Words for the people and animals in a person's life, as alternatives for patterns."""

from __future__ import annotations

from typing import Final

RELATIVES: Final = (
    "sister|brother|wife|husband|partner|son|daughter|mom|mum|mother|dad|father|girlfriend|boyfriend|fiancée|fiancee|"
    "fiancé|fiance|spouse|uncle|aunt|cousin|niece|nephew|grandma|grandmother|granny|grandpa|"
    "grandfather|granddad|baby|"
    "stepson|stepdaughter|stepmother|stepfather|twin brother|twin sister|twin|kid|child|mother-in-law|father-in-law|"
    "gf|bf|hubby|sis|bro|mama|papa|mommy|daddy|sister-in-law|brother-in-law|grandson|granddaughter|toddler"
)
SIZE: Final = (
    r"(?:(?:older|elder|younger|little|big|oldest|youngest|eldest|twin|new|newborn|baby|step|half|late|middle) )?"
)
ANIMALS: Final = (
    "dog|cat|puppy|kitten|rabbit|bunny|hamster|parrot|bird|horse|pony|goldfish|fish|turtle|tortoise|"
    "snake|lizard|gecko|"
    "guinea pig|ferret|chicken|budgie|canary|pet|golden retriever|labrador|lab|beagle|poodle|corgi|dachshund|husky|"
    "bulldog|border collie|german shepherd|tabby|greyhound|terrier|spaniel|pug|chihuahua|dalmatian|retriever|collie|"
    "bearded dragon|axolotl|cockatiel"
)
PARTNERS: Final = frozenset(("wife", "husband", "partner", "girlfriend", "boyfriend", "fiancé", "fiancée", "spouse"))
OTHERS: Final = (
    "boss|manager|doctor|dentist|therapist|teacher|trainer|coach|neighbour|neighbor|roommate|flatmate|best friend|"
    "friend|landlord|accountant|lawyer|vet|assistant|mentor|colleague|coworker|ex|tutor|nanny"
)
