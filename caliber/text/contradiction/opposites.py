"""Closed word lists for comparing statements: negations, opposites, synonyms, attributes with one value, times.

Words are folded and unstemmed here; ``contradictions`` stems them once.
"""

from __future__ import annotations

from typing import Final


def word_list(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def rows_of(text: str) -> list[tuple[str, ...]]:
    rows = text.replace("\n", ";").split(";")
    return [tuple(part.strip() for part in row.split("|")) for row in rows if row.strip()]


NEGATIONS: Final = frozenset(
    word_list("not no never nobody nothing none neither nor cannot hardly lack lacks lacking refuse refuses")
)

OPPOSITES: Final = rows_of(
    """
    enabled on | disabled off deactivated inactive; enable activate | disable deactivate;
    allow allowed permit permitted welcome welcomed | forbid forbidden prohibit prohibited ban banned deny \
    denied disallow disallowed block blocked;
    accept accepted approve approved | reject rejected decline declined refused turned_down veto vetoed disapprove;
    open opened in_business | closed close shut shuts shut_down;
    like likes love loves loved enjoy enjoys enjoyed adore adores fond favour favor | dislike dislikes disliked \
    hate hates hated detest detests loathe loathes despise despises cannot_stand opposed oppose opposes against \
    averse;
    true correct right accurate | false wrong incorrect inaccurate untrue;
    up online available reachable | down offline unavailable unreachable; public | private confidential secret;
    free gratis complimentary | paid chargeable; required mandatory compulsory obligatory | optional voluntary;
    include included includes contain contains | exclude excluded excludes omit omits;
    pass passed passes succeed succeeded successful | fail failed failing fails unsuccessful defeated flunk flunked;
    early | late delayed; punctual | unpunctual; won win wins winner | lost lose loses loser;
    present attend attended attends | absent missed skip skipped skips;
    increase increased rise rose risen grow grew grown rises grows went_up rising growing climbed climbs | \
    decrease decreased drop dropped fall fell fallen falls shrink shrank drops went_down falling shrinking \
    declining declines;
    hot warm | cold cool chilly; big large huge | small little tiny; long lengthy length | short brief concise;
    fast quick rapid | slow sluggish; cheap inexpensive affordable | expensive costly pricey; full | empty vacant;
    easy simple soft | hard difficult complicated complex; safe secure | unsafe dangerous insecure;
    loud noisy | quiet silent; light bright | dark dim; high height tall | low; inwards inward | outwards outward;
    formal | informal casual; married | single unmarried divorced widowed; alive living | dead deceased;
    sync synchronous | async asynchronous; manual manually | automatic automatically automated;
    internal | external; local locally | remote remotely; temporary temporarily | permanent permanently;
    encrypted | plaintext unencrypted;
    finished complete completed done graduate graduated graduates | unfinished incomplete pending ongoing outstanding;
    keep keeps kept retain retained retains retention | discard discarded; sweet | savoury salty bitter;
    strong | weak; thick | thin; wet | dry; vegetarian vegan meatless | carnivore meat_eater;
    indoor indoors inside | outdoor outdoors outside; read_only immutable readonly | writable mutable;
    stable | unstable flaky beta; urgent | nonurgent; healthy well | ill sick; fresh | stale; guilty | innocent;
    sober | drunk; odd | even; intact undamaged works working functional | broken damaged defective;
    crowded busy | deserted; strict | lenient; modern | old-fashioned outdated; damp moist | arid;
    calm relaxed | nervous anxious; polite friendly | rude unfriendly; mild | spicy; shortage | surplus;
    upstream | downstream; frozen | thawed; flat level | hilly; reusable | disposable single-use;
    natural | artificial synthetic; original | fake counterfeit; handmade | machine-made; victory | defeat;
    success | failure flop; above | below; sufficient enough | insufficient; major | minor;
    freelance self-employed | salaried; visible shown | hidden invisible;
    reversible rolled_back roll_back reversed revertible revert | irreversible; alone solo | accompanied;
    raw uncooked | cooked; buy buys bought purchase purchased acquire acquired | sell sells sold;
    employed | unemployed jobless; hired | fired; extrovert outgoing | introvert shy; optimistic | pessimistic;
    north northern northward | south southern southward; east eastern | west western; oldest eldest | youngest;
    largest biggest | smallest; best | worst; highest | lowest; fastest | slowest;
    single-threaded singlethreaded | multi-threaded multithreaded; better | worse;
    improve improves improved | worsen worsens worsened deteriorate deteriorated;
    experienced expert veteran | inexperienced beginner novice newcomer; young | old elderly; rich wealthy | poor;
    wide broad | narrow; heavy | lightweight; clean tidy | dirty messy; occupied | idle unoccupied;
    legal lawful | illegal unlawful; valid | invalid expired; possible | impossible;
    agree agrees agreed | disagree disagrees disagreed; asleep | awake; deep | shallow; rural | urban;
    solid | liquid; forward forwards | backward backwards; ascending | descending;
    vertical vertically | horizontal horizontally; majority | minority; often frequently | rarely seldom;
    renewed extended | cancelled canceled terminated; profitable | unprofitable loss-making;
    left-handed | right-handed; talkative chatty | taciturn; generous | stingy; nearby close_by | far faraway;
    advance advanced | retreat retreated; joins joined | quit quits resigned; positive | negative;
    clear transparent | murky cloudy opaque; import imports imported | export exports exported;
    confirmed | refuted disproved; built erected | demolished; created | destroyed; published | draft;
    smooth | rough bumpy; sharp | blunt dull; straight | crooked bent curved; tight | loose; tame | wild;
    brave | cowardly; lazy | hardworking diligent; male | female; profit | loss;
    strengthens strengthened | weakens weakened; amateur | professional; domestic | foreign; wholesale | retail;
    shared | dedicated; static | dynamic; eager eagerly | lazily; relative | absolute; verbose | terse;
    blocking | non-blocking; compiled | interpreted; opt-in | opt-out; client-side | server-side;
    monolith monolithic | microservices; open-source | proprietary closed-source;
    sequential sequentially serial serially | parallel concurrent concurrently; upper | lower;
    upstairs | downstairs; inner | outer; presence | absence; flexible | rigid; common | rare;
    sunny | rainy overcast; widened | narrowed; accelerates accelerated | slowed; friend | enemy;
    ally allies | rival rivals; centralised centralized | decentralised decentralized distributed;
    stateful | stateless; whitelist whitelisted allowlist | blacklist blacklisted blocklist;
    hardcover hardback | paperback; fiction | non-fiction; fixed-term | open-ended; supervised | unattended;
    left-wing | right-wing; seated sitting | standing; fertile | barren
    """
)
"""Words that mean one thing, and words that mean its opposite."""

SYNONYMS: Final = rows_of(
    """
    start starts started begin begins began commence commences;
    leave leaves left end ends ended finish finishes expire expires stop stops departs depart runs_out;
    child children kid kids;
    home inhabits live lives lived living reside resides residence resident moved move address dwell;
    job position role occupation profession title; employer employed; arrive arrives arrival land lands landed;
    licence license licensed licences; headquarter headquarters hq headquartered;
    own owner owns owned belongs belong; maintain maintainer maintained maintains; tongue language; native mother;
    release released launch launched ship ships shipped rollout; due deadline;
    deploy deploys deployed deployment rollouts; database db; production prod; colour color;
    weight weigh weighs weighed; age aged; favourite favorite preferred prefer prefers;
    retry retries retried attempt attempts; boss manager supervisor; partner spouse husband wife;
    appointment meeting; apartment flat; pay pays cost costs price priced fee charge charges rent; region zone;
    host hosts hosted hosting; store stores stored save saves saved;
    reply replies answer answers response responses; remove removed delete deleted deletes erase erased;
    write writes wrote written; send sends sent; run runs running ran; use uses used using;
    name named called names; lead leads led leader leading head heads headed; vote votes voted;
    born birthday birth birthdate birthplace; attend attending; car vehicle; doctor physician gp; bike bicycle;
    movie film; holiday vacation; mobile phone cellphone telephone; supplier vendor;
    staff employee employees people workforce headcount personnel; customer customers client clients; test tests;
    room venue; author authors; salary wage; pr pull_request; ceo chief_executive managing_director;
    config configuration settings; repo repository; docs documentation; app application; kubernetes k8s;
    postgres postgresql; admin administrator;
    change changes changed modify modifies modified touch touches touched; direct directs directed director;
    founded founds founder establish established; design designs designed designer; coach coaches coached trainer;
    teach teaches taught teacher; compose composed composer; author authored;
    chair chairs chaired chairman chairwoman chairperson; crossing journey trip;
    vaccinated vaccination vaccine shot jab immunised immunized; lawyer attorney solicitor; company firm;
    illness disease sickness; photo picture; bug defect; folder directory; contract agreement; email e-mail;
    fridge refrigerator; television tv; university uni; upgrade upgraded update updated; parameter param;
    certificate cert; specification spec; duration lasts lasted; surgery operation; garden yard; pharmacy chemist;
    pupil student; allergic allergy allergies; rehearse rehearses rehearsal; incorporated registered;
    timezone time_zone
    """
)
"""Words that name the same attribute or act."""

SINGLE_VALUED: Final = frozenset(
    word_list(
        """
        home job licence headquarter native owner maintain default favourite capital timezone currency region boss
        license headquarters own born nationality citizenship religion surname nickname birthplace hometown
        located based host primary main current status level mode theme codename email address port branch
        colour color framework orm editor shell browser os password theme format encoding protocol language
        married spouse husband wife partner fiance diet size height weight shoe blood major degree school university
        employer landlord dentist doctor captain leader lead president ceo cto founder author director chair
        room venue location place seat terminal gate platform floor provider supplier vendor backend engine
        database broker bus cache version name title called rank grade diagnosis cause winner destination origin
        unit scale locale plan tier manufacturer brand model
        phone number iban passport isp bank insurer airline team sponsor assignee reviewer
        """
    )
)
"""Attributes that have one value at a time."""

EXCLUSIVE: Final = frozenset(
    word_list("only solely exclusively alone sole all every each always entirely nothing_else nowhere_else")
)
"""Words that leave no room for another value."""

PREFERENCE: Final = frozenset(
    word_list("favourite favorite prefer prefers preferred rather wants want wanted likes best choose chooses")
)

MANY_VALUED: Final = frozenset(
    word_list(
        "support supports supported speak speaks know knows visit visited include includes accepts "
        "sell sells offer offers work works compatible"
    )
)
"""Acts that several things can be the object of at once."""

PLACED: Final = frozenset(("by", "in", "on", "at", "under", "with", "from", "as", "over", "through", "to", "into"))
"""Words before what something is made, owned or held by or in."""

LIGHT: Final = frozenset(
    word_list(
        """
        a an the of to in on at for by with from into as is are was were be been being am it its this that these those
        there here has have had having do does did doing will shall and or but if so than then too also just very much
        he she they we you i me my his her their our your him them us who whom whose which what when where how
        get gets got gets given make makes made set sets put said says say told tells mentioned noted note according
        currently now moment right still already yet again present presently today nowadays ever
        all any some both each every other same such own more most many several few quite fully completely
        about around approximately roughly nearly almost over under least up per mr mrs ms dr
        fixed scheduled planned agreed decided stands stood comes come goes go happens happen ended located
        one only solely always please can could may must should would might needs take takes taken took
        behind through during within via upon onto out off really actually simply usually generally
        bit kind thing after before held hold holds place takes things day days week weeks
        year years month months hour hours
        minute minutes gets because while although however therefore though since until
        everyone everybody else nothing_else nowhere_else whole entire longer anymore
        total totally extremely highly deeply strictly exactly fairly pretty recently lately officially
        entirely known professor prof normally typically altogether clearly these immediately
        anything something everything please current particularly chiefly mainly
        """
    )
) - frozenset(word_list("day days week weeks own"))
"""Words without content of their own when two statements are compared."""

UNSURE: Final = frozenset(
    word_list(
        "if whether would could might maybe perhaps possibly considering asked asks wonders wonder "
        "plan_to hypothetically suppose"
        "supposing imagine proposed proposes suggested suggests hopes hope hoped wishes wish dreams "
        "thinking plans plan_to planned_to "
        "believe believes believed assume assumes assumed fear fears feared doubt doubts doubted pretends pretended "
        "intends intend guess rumour rumor allegedly apparently unsure undecided"
    )
)
"""Words of what is not stated as a fact."""

PAST: Final = frozenset(word_list("formerly previously once used_to back_then originally ex former retired"))
FUTURE: Final = frozenset(word_list("will soon upcoming next tomorrow starting going_to eventually later"))
EXCEPT: Final = frozenset(word_list("unless except without until besides beyond apart_from"))

KIN: Final = frozenset(
    word_list(
        """
        sister brother mother father son daughter wife husband partner friend boss colleague manager neighbour
        neighbor
        cousin uncle aunt grandmother grandfather grandson granddaughter parents child children kid kids dog
        cat girlfriend
        boyfriend fiance fiancee twin niece nephew flatmate roommate team company employer landlord team's assistant
        """
    )
)
"""Whom a name can own: a statement about somebody's sister is not about somebody."""

COUNTRIES: Final = frozenset(
    word_list(
        """
        germany france italy spain portugal poland austria switzerland belgium netherlands denmark sweden
        norway finland
        iceland ireland england scotland wales uk britain europe asia africa america usa us canada mexico
        brazil argentina
        chile peru colombia japan china india korea taiwan vietnam thailand indonesia malaysia singapore australia
        greece turkey russia ukraine czechia slovakia hungary romania bulgaria serbia croatia slovenia estonia latvia
        lithuania egypt morocco kenya nigeria ghana ethiopia israel iran iraq bavaria tuscany andalusia catalonia
        brittany provence california texas florida ontario quebec scandinavia eu abroad overseas countryside
        """
    )
)
"""Places that contain towns: a town and one of these do not exclude each other."""
