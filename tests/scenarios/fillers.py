"""Deterministic filler for the written scenarios: chat exchanges and tool outputs.

    exchanges(style, count, words, seed) -> [(user_text, assistant_text), ...]
    tool_output(style, size_bytes, seed) -> str

Stand-alone (standard library not even needed beyond the language), own PRNG, so that the
same arguments give the same text on every Python and every machine.
Styles of exchanges: small_talk, coding, ops, support, travel, research.
Styles of tool output: log, json, code, csv. Output is pure ASCII.
"""

_MASK = (1 << 64) - 1


class _Rng:
    """splitmix64, seeded from a string by FNV-1a."""

    def __init__(self, text):
        h = 0xCBF29CE484222325
        for byte in text.encode("utf-8"):
            h = ((h ^ byte) * 0x100000001B3) & _MASK
        self.state = h

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, n):
        return self.next() % n

    def between(self, low, high):
        return low + self.below(high - low + 1)

    def pick(self, items):
        return items[self.below(len(items))]

    def shuffled(self, items):
        items = list(items)
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]
        return items


# ---------------------------------------------------------------------------------------------
# Topics: "topic | aspect; aspect; aspect; aspect | a sentence of its own. | another one."
# Topic and aspects are noun phrases and are used where number does not matter.
# ---------------------------------------------------------------------------------------------

_SMALL_TALK = """
the bakery that opened on the corner | the rye loaf; the queue at eight; the cinnamon knots; the grumpy cashier | A good crust keeps for two days in a paper bag and goes leathery in plastic. | The second batch usually comes out of the oven a little after ten.
the crossword in the Saturday paper | the long anagram; the cricket clue; the top left corner; the pencil smudges | Setters love rivers and Greek letters when they run out of vowels. | An anagram is easier if you write the letters in a circle.
the quiz night at the pub | the music round; the tie-break; the team name; the cheating table | Half of all music rounds are won by whoever remembers advertising jingles. | A quiet team beats a loud one as soon as the picture round starts.
the neighbour's trampoline | the squeaking springs; the safety net; the early risers; the hedge | A drop of silicone oil quiets springs for most of a summer. | Children lose interest in trampolines roughly when the leaves come down.
the leaking tap in the kitchen | the rubber washer; the limescale; the shut-off valve; the dripping at night | A washer costs pennies, and finding the right size costs an afternoon. | Vinegar and patience remove most limescale.
the weather, which cannot decide | the drizzle; the sudden wind; the foggy mornings; the umbrella by the door | Spring weather here changes its mind about every twenty minutes. | The forecast for tomorrow is the same shrug as today's.
the film everybody talks about | the slow first hour; the ending; the soundtrack; the subtitles | Three-hour films should come with an interval and an ice cream. | The trailer gave away the best joke, as trailers do.
learning to juggle | the third ball; the bent knees; the dropped catches; the rhythm | Most people learn the cascade in about a week of short practice. | Standing in front of a bed saves a lot of bending down.
the tomato plants on the balcony | the yellow leaves; the watering schedule; the wobbly canes; the greenfly | Tomatoes like a deep drink rarely rather than a sip every hour. | Pinching out side shoots feels cruel and works.
the old record player | the worn needle; the crackle; the belt; the dusty sleeves | A fresh needle does more than any expensive amplifier. | Records stored flat warp slowly and then all at once.
the running club | the hill repeats; the muddy lane; the early start; the stitch after a mile | Running slowly most of the time is what makes you fast. | Nobody regrets the run once the shower is over.
the office coffee machine | the descaling light; the burnt taste; the steam wand; the missing spoons | Nine times out of ten the bitter taste is old oil in the group head. | A rota for cleaning lasts exactly until the first holiday.
the jigsaw with two thousand pieces | the sky; the edge pieces; the missing corner; the dining table | Sorting by shape beats sorting by colour once you reach the sky. | There is always one piece under the sofa.
the choir rehearsal | the alto line; the cold church hall; the second verse; the new conductor | Warming up with silly noises is more useful than it looks. | Tenors are rare and know it.
the squeaky stairs | the third step; the loose nail; the carpet runner; the midnight snack route | Talcum powder in the gap silences a surprising number of stairs. | Walking at the very edge of the tread helps as well.
the bus that never comes | the timetable; the shelter with no roof; the app; the driver who waves | Two buses arrive together because the late one collects all the passengers. | The app shows hope rather than data.
baking bread at home | the sticky dough; the oven stone; the overnight rise; the first slice | Cold dough is easier to shape and tastes of more. | Wait until it has cooled before slicing, if you can.
the garden fence | the rotten posts; the second coat of paint; the gap at the bottom; the shared cost | Concrete spurs let you keep a rotten post for years. | Paint on a dry day, and not in full sun.
the new sofa | the narrow hallway; the fabric samples; the delivery slot; the old one in the garage | Measure the diagonal of the doorway, nobody ever does. | Dark fabric shows dust, light fabric shows everything else.
the museum visit | the crowded hall; the audio guide; the gift shop; the tiny portraits | Go in the last two hours, when the school groups have left. | One room seen well beats ten rooms walked through.
the chess app | the opening trap; the lost queen; the rating; the rematch | Endgames are where amateurs gain the most for the least study. | Tilt is real: stop after two losses in a row.
the flea market | the brass lamp; the haggling; the box of postcards; the early dealers | The best finds are gone before breakfast and the best prices come at closing. | Ask what else is in the van.
the broken zip on the winter coat | the slider; the missing tooth; the tailor; the graphite pencil | A pencil rubbed on the teeth frees most stuck zips. | Replacing only the slider is a ten-minute job.
sleeping badly | the late screen; the street lamp; the warm room; the racing thoughts | A cooler room helps more people than any tea. | Getting up at the same time matters more than going to bed early.
the bird feeder | the squirrels; the sunflower hearts; the bold robin; the empty tray | Squirrels treat every baffle as a puzzle with a prize. | Robins will eat from a hand after a few patient mornings.
the pottery wheel | the wobbling clay; the glaze; the kiln queue; the lopsided bowl | Centring is nine tenths of throwing a pot. | Lopsided bowls are perfect for keys.
the board game evening | the endless rules; the snack table; the sore loser; the missing dice | Teach the goal first and the exceptions only when they come up. | A game that ends on time gets played again.
the noisy fridge | the compressor; the level feet; the ice at the back; the humming at night | Pulling it two fingers away from the wall often ends the rattle. | A full fridge hums less than an empty one.
the autumn walk | the wet leaves; the mushroom pickers; the hill with the bench; the flask of tea | The light is best in the hour before supper. | Boots dry faster with newspaper inside.
moving the bookshelf | the heavy bottom row; the wall anchors; the dust; the books nobody reads | Take the books out, however silly it feels. | A strip of carpet under the legs makes it slide.
the new bicycle bell | the loose clamp; the polite ring; the pedestrians with headphones; the rust | A bell with a long ring sounds kinder than a short one. | Two rings from far away beat one up close.
the local election posters | the lamp posts; the slogans; the smiling candidates; the rain damage | Posters must be gone within a week, and never are. | The shortest slogan is usually remembered.
the swimming pool timetable | the family hour; the slow lane; the cold showers; the locker coins | Lunchtime is the emptiest hour on most weekdays. | Fast lanes are a matter of opinion.
the houseplant that sulks | the brown tips; the draughty window; the bigger pot; the tap water | More houseplants drown than die of thirst. | Turn the pot a quarter each week and it will stop leaning.
the documentary about octopuses | the camouflage; the diver; the clever escape; the music | An octopus has three hearts and little patience. | The narrator sounded more moved than the animals.
the local football team | the early goal; the injured keeper; the away end; the cold pies | They always play better once there is nothing left to win. | The referee lives nearby, which is brave.
the attic clear-out | the box of cables; the old letters; the broken lamp; the roof hatch | Keep one box for maybe, and burn the deadline for it into a calendar. | Nobody has ever needed the seventh spare cable.
knitting a scarf | the dropped stitch; the itchy wool; the pattern; the uneven edge | Slip the first stitch of each row and the edge stays neat. | A scarf is finished when the wool is.
the street musicians | the accordion; the same three songs; the hat; the windy corner | The acoustics under the railway bridge flatter everybody. | A coin early in the song gets you a smile for the rest.
the new haircut | the fringe; the awkward mirror moment; the product; the colleagues who notice | Any haircut needs about two weeks to become yours. | The second wash tells the truth.
the loose cobblestones outside | the puddles; the council form; the delivery scooters; the wobble | The council answers faster if the message has a photograph. | High heels and cobbles are a long-running feud.
the lemonade stand of the children next door | the hand-painted sign; the warm lemonade; the business plan; the tip jar | Their prices rise with the temperature, which is good economics. | They accept biscuits as payment.
the sunrise from the roof terrace | the cold railing; the coffee; the swifts; the pink minute | The best colour lasts shorter than making the coffee. | Clouds at the horizon make it better and not worse.
the recycling calendar | the blue bin; the missed week; the glass container; the neighbours' parking | Everybody copies whoever puts their bin out first. | The calendar is clear to those who printed it.
"""

_CODING = """
the flaky login test | the fixture order; the fake clock; the shared temp folder; the retry decorator | A test that passes on its own and fails in company nearly always shares state. | Freezing the clock removed most of the noise the last time.
the slow build | the cache key; the generated sources; the linker step; the incremental mode | Half the time goes into relinking things nobody touched. | A build trace tells more than guessing does.
the pagination of the list endpoint | the cursor token; the page size; the sort order; the total count | Offset paging gets slower the deeper a client goes. | A cursor must carry the tie-breaker as well as the sort value.
the type errors after the upgrade | the optional fields; the stub package; the generics; the ignore comments | The checker is right more often than the comment that silences it. | Most of these vanish once the protocol class is explicit.
the memory growth in the worker | the global cache; the closure; the heap snapshot; the queue depth | Compare two snapshots taken ten minutes apart and look only at the difference. | A bounded cache turns a leak into a policy.
the logging setup | the json formatter; the noisy library; the request id; the log level | One structured line per request beats ten chatty ones. | Libraries should never configure the root logger.
the config loader | the default values; the environment override; the missing key; the nested section | Fail at start with the name of the key and not an hour later. | Two ways to set one value will disagree sooner or later.
the date parsing helper | the time zone; the ambiguous hour; the locale; the round trip | Store instants in UTC and format at the edge. | The hour that happens twice in autumn breaks every naive helper.
the retry logic in the client | the backoff; the timeout; the status codes; the upper bound | Retrying a request that is not safe to repeat doubles somebody's work. | A little jitter keeps the herd from coming back together.
the docker image size | the base image; the build stage; the package cache; the copied tests | The largest layer is usually something copied by accident. | Two stages shrink it by more than any flag.
the code review backlog | the giant diff; the style comments; the missing tests; the draft label | Reviews get better as the diffs get shorter. | Ask for one thing per change and the queue melts.
the regular expression for versions | the greedy group; the anchors; the pre-release suffix; the backtracking | A small hand-written parser is easier to read than that pattern. | Anchoring both ends fixes most surprises.
the async refactoring | the blocking call; the event loop; the cancelled task; the connection pool | One blocking call in a coroutine stalls everybody else. | Cancellation must be handled where the resource is held.
the dependency update | the lock file; the breaking change; the transitive pin; the changelog | Update one major version at a time and run everything in between. | The changelog mentions it in the last line, as usual.
the JSON schema of the events | the required fields; the enum; the additional properties; the version number | Additive changes are cheap and renames are not. | Consumers break on what the schema never promised.
the race in the cache | the double check; the lock; the stale read; the eviction | The window is small, so the test has to force it. | A single flight per key makes the stampede go away.
the command line flags | the help text; the short options; the exit codes; the subcommands | Good help shows one example for each flag. | Exit codes are an interface, so write them down.
the CSV importer | the quoting; the header row; the byte order mark; the empty lines | Somebody's spreadsheet always writes semicolons. | Report the line number with every rejected row.
the websocket reconnects | the heartbeat; the session token; the missed messages; the proxy timeout | Without a heartbeat the proxy closes idle sockets quietly. | Resume from the last sequence seen and not from now.
the feature toggle cleanup | the dead branch; the default; the config entry; the stale tests | Each toggle should be born with a date of death. | Delete the branch first and the entry afterwards.
the error messages | the wrapped cause; the user wording; the stack trace; the error code | Say what happened, to which thing, and what to do next. | A wrapped cause is worth more than a clever sentence.
the SQL query in the report | the missing index; the join order; the subselect; the row estimate | The plan shows a scan over the whole table for nine rows. | Row estimates that are wrong by a thousand explain most slow plans.
the file upload handler | the chunk size; the temp file; the content type; the size limit | Stream to disk and never hold the body in memory. | Trust the bytes rather than the extension.
the front end bundle | the tree shaking; the lazy route; the polyfills; the source maps | One date library weighs more than the whole application. | Lazy routes pay off at the second visit as well.
the unit tests with mocks | the patched module; the call count; the fake repository; the assertion | A fake with behaviour outlives ten mocks with expectations. | Patch where a thing is used and not where it is defined.
the continuous integration pipeline | the matrix; the cache restore; the artifact upload; the nightly job | Fail fast on the cheap checks and run the slow ones after. | A red nightly that nobody reads is only heat.
the string encoding bug | the latin bytes; the normal form; the terminal; the file name | Decode at the border, work with text inside, encode on the way out. | Two names can look alike and differ in their normal form.
the permission check | the middleware; the owner rule; the admin bypass; the audit line | Deny by default and list what is allowed. | A check in the view is one forgotten view from a leak.
the state machine of the order | the illegal transition; the pending state; the event log; the diagram | Draw it before coding it and half the states disappear. | Illegal transitions should raise and not shrug.
the background job queue | the visibility timeout; the dead letters; the idempotent handler; the priority | Every handler will run twice some day, so let it. | A dead letter without a reason is only a lost message.
the naming of the modules | the utils folder; the circular import; the public surface; the prefix | A folder called utils grows until nobody dares to open it. | Names that follow the domain age better.
the benchmark numbers | the warm-up; the noisy neighbour; the median; the baseline | Always report the spread next to the median. | A baseline from another machine is a story and not a number.
the recursion limit | the deep tree; the explicit stack; the tail case; the memory use | An explicit stack turns a crash into a loop. | Trees from users are deeper than trees from tests.
the git history | the squash; the merge commit; the bisect; the commit message | Small commits make bisect worth having. | A message should say why, the diff already says what.
the API client generator | the template; the optional parameters; the enum names; the retries | Generated code is fine as long as nobody edits it. | Names that collide after conversion need a rule.
the thread pool | the queue length; the starvation; the daemon flag; the shutdown order | Nested tasks in one pool deadlock once the pool is full. | Shut down producers before consumers.
the search box | the debounce; the empty query; the highlighting; the ranking | Two hundred milliseconds of debounce feels instant to people. | An empty query should show something useful.
the markdown renderer | the nested list; the raw html; the code fence; the link check | Sanitise after rendering and not before. | Nested lists are where all renderers disagree.
the linter rules | the line length; the unused import; the complexity limit; the exceptions list | A rule with forty exceptions is not a rule. | Let the formatter win all arguments about spaces.
the data class conversion | the default factory; the slots; the equality; the frozen flag | A mutable default is shared by every instance. | Frozen objects make caching honest.
the rate limiter | the token bucket; the burst; the header; the clock skew | Tell the caller when to come back and most will. | A bucket for each key needs a way to forget keys.
the plugin interface | the entry point; the version check; the sandbox; the load order | Keep the interface smaller than you would like. | A plugin that fails to load should say so and let the rest run.
"""

_OPS = """
the disk alert on the log host | the rotation; the inode count; the debug level; the retention | The debug level was left on after the last investigation. | Inodes ran out before bytes did, which the graph does not show.
the slow failover drill | the health check; the DNS record; the warm standby; the checklist | The standby was fine, the record was cached for too long. | A drill that surprises nobody teaches little.
the certificate renewal | the intermediate; the expiry date; the renewal hook; the old load balancer | The new chain was installed and the process never reloaded it. | An expiry alert at thirty days leaves room for holidays.
the noisy latency alert | the threshold; the percentile; the night batch; the silence | Alert on what users feel and not on what machines do. | The night batch doubles the tail and harms nobody.
the queue backlog | the stuck consumer; the partition; the poison message; the lag graph | One poison message can hold a whole partition. | The lag falls by itself once the consumer moves on.
the kernel update | the reboot window; the live patch; the driver; the canary host | Two canary hosts for a day are cheaper than one bad evening. | The driver needs its own package for each kernel.
the capacity plan | the growth curve; the headroom; the seasonal peak; the quota | Plan for the peak and buy for the quarter. | Headroom that nobody measured is only hope.
the backup verification | the restore test; the checksum; the missing table; the report | A backup is a rumour until it has been restored. | Checksums say the bytes are there and not that they make sense.
the load balancer weights | the drained node; the sticky sessions; the slow start; the probe | A node that comes back cold should get traffic slowly. | Sticky sessions hide an uneven pool.
the secret rotation | the old token; the grace period; the deploy order; the audit trail | Two valid secrets for a day make rotation boring. | Whoever still uses the old one shows up in the audit trail.
the connection storm after the deploy | the pool size; the jitter; the proxy; the cold cache | All pods reconnect in the same second unless told otherwise. | The proxy absorbs it if the queue is bounded.
the cron job that overlaps | the lock file; the runtime; the stale lock; the schedule | A job longer than its period will meet itself. | A lock with an owner and an age can be cleaned safely.
the metrics cardinality | the label; the user id; the scrape size; the retention tier | One label with user ids costs more than all the others. | Drop at the scrape and not in the dashboard.
the network flap between the zones | the packet loss; the link aggregate; the optics; the carrier ticket | Loss below one percent is enough to ruin long transfers. | The carrier sees nothing until you send a trace.
the container restarts | the memory limit; the liveness probe; the exit code; the node pressure | A liveness probe that depends on a database restarts healthy pods. | Exit code and time of death tell most of it.
the time drift on the edge hosts | the chrony config; the upstream; the virtual clock; the leap file | Tokens fail first when clocks drift. | Three upstreams agree, one only guesses.
the alert routing | the escalation; the quiet hours; the team label; the duplicate page | Every page should name the one who can act. | Two tools that page for one event teach people to ignore both.
the database vacuum | the dead rows; the long transaction; the freeze age; the cost delay | A forgotten transaction keeps every dead row alive. | More workers help less than a shorter delay.
the access review | the leavers; the shared account; the break-glass role; the evidence | Shared accounts make every review a guess. | Evidence is a query that anyone can repeat.
the deployment freeze | the exceptions; the calendar; the hotfix path; the approval | A freeze needs a way to ship fixes or it will be broken. | The calendar should be where the deploy tool can read it.
the postmortem draft | the timeline; the contributing causes; the action items; the tone | Write down what people saw and when, and judge later. | Five action items get done and twenty do not.
the log shipping gap | the agent buffer; the back pressure; the missing hour; the checkpoint | The agent drops the oldest lines when its buffer fills. | The missing hour is on the host if rotation was kind.
the replica lag | the long query; the write burst; the network; the apply thread | Reports on the replica hold back the apply thread. | Lag in bytes moves earlier than lag in seconds.
the dashboard nobody reads | the unused panels; the units; the owner; the default range | A panel without a unit is a drawing. | Delete it and see who writes.
the spot instance losses | the drain hook; the mixed pool; the notice period; the cost report | Two minutes of notice are enough if draining is quick. | Mixing sizes makes losses rarer together.
the firewall rule request | the source range; the ticket; the expiry; the review | Rules without an end date live forever. | Ask for the service and not for the port.
the object store latency | the small files; the list calls; the region; the retry budget | Listing a million keys is slower than any download. | Small files want to be one large file.
the package mirror | the sync job; the signature; the stale index; the disk | A half-finished sync looks like a missing package. | Publish the index last.
the on-call handbook | the first page; the dead links; the contact list; the drill date | The first page should fit on a phone at night. | Dead links are found at three in the morning.
the service mesh rollout | the sidecar memory; the mutual tls; the opt-in label; the rollback | Opt in by namespace and keep the way back short. | The sidecar costs memory on every pod, so count it.
the message broker upgrade | the rolling restart; the protocol version; the controller; the client library | Raise the protocol version only after every node runs the new one. | Old clients will be noticed on the last day.
the storage migration | the dual write; the backfill; the cutover; the verification | Compare counts by day and not in total. | Dual writes need one side that decides.
the staging environment | the stale data; the shared queue; the nightly reset; the cost | Staging lies mostly about volume. | A nightly reset keeps it honest.
the incident channel | the scribe; the status page; the side threads; the handover | One person types, one person decides. | Side threads are where decisions get lost.
the cpu throttling | the limit; the period; the burst; the thread count | Throttled time explains a tail that average use hides. | Threads follow the host's cores and not the limit.
the DNS resolver cache | the negative entry; the search domain; the ttl; the node cache | A negative answer stays longer than anyone expects. | Five search domains make five lookups of each name.
the hardware replacement | the serial number; the remote hands; the spare part; the rack diagram | Send a picture of the right slot with the ticket. | The spare is always in the other building.
the cost anomaly | the egress; the forgotten cluster; the tag; the forecast | Forgotten test clusters are the usual suspect. | Tags that are optional are missing.
the access logs volume | the sampling; the health probes; the field list; the cold tier | Health probes were a third of all lines. | Sample the successes and keep the failures.
the config drift | the manual change; the plan output; the pinned version; the exception | Whatever was fixed by hand at night comes back by machine at noon. | A daily plan that must be empty finds drift early.
the chaos experiment | the blast radius; the stop button; the hypothesis; the observer | Write down what should happen before it does. | Start with the failure you had last month.
the mail relay | the queue; the reputation; the greylisting; the bounce | Reputation is lost in an hour and won back in a month. | Greylisting looks like a delay and is a test.
"""

_SUPPORT = """
the late parcel | the tracking page; the depot; the delivery window; the neighbour note | The tracking page stops updating when a parcel changes carrier. | Depots answer faster in the morning.
the double charge on the card | the pending entry; the bank; the statement; the reversal | A pending entry falls away by itself after some days. | Only a booked charge can be refunded.
the broken zip of the backpack | the photo; the guarantee; the repair service; the return label | A photo of the slider from the side is the useful one. | Repairs take a little longer than a swap.
the missing invoice | the billing address; the spam folder; the download page; the tax number | Invoices are issued when goods leave and not when they are ordered. | A changed address applies to the next one.
the blinking router | the reset pin; the cable; the firmware; the orange light | Orange means that it waits for the line, red that it gave up. | Hold the pin until all lamps go dark.
the wrong colour of the curtains | the product picture; the swatch; the exchange; the postage | Screens show greens warmer than they are. | Swatches are free and come by letter.
the password reset mail | the junk folder; the old address; the link; the lock | The link dies after an hour or after its first use. | Three tries lock the account until the next morning.
the squeaking office chair | the gas spring; the screws; the armrest; the assembly sheet | Tightening the screws in the cold lets them work loose in the warm. | A new gas spring is a spare part and no repair.
the subscription renewal | the reminder; the notice period; the plan; the refund | The reminder goes out two weeks ahead. | A plan can be paused for up to three months.
the app that logs people out | the update; the battery saver; the cookie; the second device | Battery savers kill the session before the app can save it. | A second device counts as a new login.
the gift card balance | the scratch field; the till receipt; the expiry; the web shop | Cards bought at a till need a day before they work online. | The scratch field hides twelve characters.
the noisy washing machine | the transport bolts; the level feet; the drum; the filter | Transport bolts left in place cause most of the first calls. | A coin in the filter sounds worse than it is.
the coffee grinder | the burrs; the stuck bean; the setting ring; the spare hopper | Turn the ring only while the motor runs. | Old beans stick more than fresh ones.
the delivery of the wardrobe | the two packages; the stairs; the time slot; the missing panel | Large furniture travels as separate packages that can arrive apart. | The driver only carries to the first closed door.
the discount code | the basket; the minimum value; the capital letters; the excluded brand | Codes cannot be combined, the best one wins. | Capital letters matter for the older codes.
the tent with a wet seam | the sealing tape; the groundsheet; the drying; the receipt | Seams settle after the first heavy rain. | Never pack it wet, even for a day.
the hearing of the headset | the pairing; the foam; the left side; the cable | Forget the old pairing before making a new one. | Foam that is worn lets the bass out.
the cancelled order | the stock level; the apology mail; the replacement; the waiting list | Stock counts can be a night old. | The waiting list is first come, first served.
the thermostat display | the batteries; the wiring; the frost symbol; the hold mode | Rechargeable cells read as empty after a week. | The frost symbol means that it rests.
the printed photo book | the crop marks; the paper; the cover; the preview | What lies in the bleed will be cut. | Matt paper makes dark pictures darker.
the e-bike display | the error number; the sensor; the magnet; the dealer | The magnet on the spoke slips and the display panics. | Only a dealer can clear the last group of errors.
the leaking hose | the gasket; the thread; the pressure; the clamp | Hand tight and a quarter turn is enough. | A gasket that was dry for a year should be changed.
the loyalty points | the statement; the bonus week; the family account; the expiry | Points appear after the return period is over. | A family account shares points but not vouchers.
the scratched table top | the filler wax; the sunlight; the varnish; the claim form | Wax hides it, varnish repairs it. | Claims need the number on the bottom of the table.
the smart bulb | the bridge; the colour scene; the switch on the wall; the factory reset | Bulbs that lose power at the wall forget their scene. | Five quick switches reset most models.
the shoes that run small | the size chart; the half size; the insole; the exchange | Measure in the evening, feet are larger then. | Half sizes come back in spring.
the contact form | the attachment; the case number; the waiting time; the copy | Attachments above ten megabytes vanish quietly. | Keep the copy, it has the case number.
the spare remote | the code list; the battery door; the sensor; the old model | The code list is printed under the battery door. | Old models learn from each other.
the vacuum cleaner robot | the map; the brush; the docking station; the rug fringe | A moved docking station needs a new map. | Fringe is its natural enemy.
the ticket resale | the seat map; the name change; the fee; the transfer | Names can be changed until the day before. | The fee is taken from the seller.
the kettle | the lid; the scale; the base; the switch | Citric acid is kinder to seals than vinegar. | A lid that does not close keeps the switch from holding.
the mattress trial | the cover; the pick-up; the smell; the firmness | The smell leaves within a week by an open window. | Firmness changes a little in the first month.
the language setting | the profile page; the browser; the help centre; the letter | Letters follow the profile and pages follow the browser. | The help centre remembers the last choice.
the data export | the archive; the waiting period; the format; the photos | Exports are built at night. | Photos come in a second archive.
the garden chair cushion | the ties; the fading; the wash label; the set of four | Cushions fade evenly if they are turned. | Sets are only sold as four.
the lost luggage tag | the barcode; the claim desk; the spare label; the photo | A photo of the bag is worth more than a description. | Barcodes can be read even when torn.
the water filter jug | the cartridge; the counter; the carbon dust; the lid | Black specks at the start are carbon and harmless. | The counter counts days and not litres.
the standing desk | the motor; the memory key; the collision stop; the cable tray | Lower it all the way once and it finds its zero again. | The collision stop reacts to a full drawer.
the newsletter | the unsubscribe link; the interval; the second address; the offers | Unsubscribing takes effect with the mail after next. | The monthly issue has the same offers.
the camera strap | the clasp; the stitching; the swivel; the recall notice | Clasps from the spring batch were strengthened. | The swivel wants a drop of oil each season.
the baking tin | the coating; the dishwasher; the lid; the sharp edge | Coated tins do not like the dishwasher. | The edge was rounded in the newer series.
the alarm clock | the snooze key; the dimmer; the radio signal; the back-up cell | The radio signal is best at night by a window. | The back-up cell lasts about two years.
"""

_TRAVEL = """
the night train | the couchette; the breakfast tray; the border stop; the earplugs | The upper berth is warmer and has the better shelf. | Breakfast comes half an hour before arrival, asked for or not.
the airport transfer | the last shuttle; the taxi rank; the meeting point; the car seat | The rank on the arrivals level is honest, the men inside the hall are not. | Shuttles stop running before the last landing.
the hotel breakfast | the egg station; the crowd at nine; the terrace; the room rate | Guests who come early get the window. | The bakery across the street is cheaper and better.
the coastal path | the steep steps; the lighthouse; the wind; the bus back | Walk it from north to south and the sun stays behind you. | The bus back runs once an hour and is always full.
the hand luggage rules | the liquids bag; the wheels; the gate staff; the second item | Soft bags forgive what hard shells do not. | Wheels count towards the height.
the old town tour | the meeting square; the free walk; the hidden courtyard; the tip | Free walks are paid at the end and should be. | The courtyard closes when the caretaker goes home.
the rental car | the fuel policy; the scratches; the second driver; the toll box | Film the car from all sides before you leave. | The toll box is charged by the day, used or not.
the mountain hut | the shared dorm; the cash box; the thunderstorm; the soup | Huts want cash and an early arrival. | Storms come after lunch in that season.
the jet lag | the morning light; the short nap; the late dinner; the coffee | Light in the morning moves the clock more than any pill. | Going east is the hard way.
the street food market | the dumplings; the spice level; the plastic stools; the closing hour | Eat where the queue is local and moves. | Point, smile and carry small coins.
the museum pass | the skip line; the third day; the closed Mondays; the cloakroom | A pass pays off from the third museum on. | Most houses close on one weekday, each on another.
the packing list | the rain jacket; the charger; the spare glasses; the laundry bag | Lay it all out and put a third back. | One bag for cables saves an hour a week.
the island hopping plan | the timetable; the wind cancellation; the small port; the day pass | Leave a spare day before the flight home. | Wind cancels small boats first.
the vineyard visit | the tasting room; the bicycle; the shade; the cellar stairs | Book the last slot, the pours grow. | Cellars are cold even in July.
the currency question | the cash machine; the rate; the tip; the small notes | Always choose the local currency on the screen. | Small notes open doors that cards do not.
the language phrasebook | the polite form; the menu words; the numbers; the pronunciation | Learn please, thanks and the numbers to ten. | The attempt counts more than the grammar.
the desert excursion | the sunrise start; the scarf; the water supply; the camp fire | Nights are colder than anyone packs for. | The quiet is the sight.
the ski pass | the lift queue; the half day; the slush; the hire shop | Start high early and ski down as it softens. | Hire shops are quiet the evening before.
the canal boat | the locks; the mooring; the water tank; the low bridge | Locks need two people and one plan. | Moor before dusk or moor badly.
the cooking class | the market walk; the knife skills; the recipe sheet; the long table | The market walk is the best hour of it. | Recipes shrink to one page and lose the tricks.
the border crossing by bus | the stamps; the long wait; the snacks; the driver's list | Keep the passport in your hand and the snacks in reach. | The wait is shorter before dawn.
the city card | the tram; the zones; the validation; the inspectors | A card that is not stamped is no ticket. | Zones end one stop before the airport.
the guesthouse by the lake | the rowing boat; the mosquito net; the porch; the host's jam | Ask for the room on the porch side. | The boat is free if you bail it first.
the travel insurance | the small print; the sports clause; the emergency number; the receipts | Keep every receipt, even the silly ones. | The sports clause decides about skiing.
the photo stops | the viewpoint; the golden hour; the tripod; the crowd | Walk five minutes past the viewpoint and be alone. | Clouds make better pictures than blue does.
the cathedral tower | the narrow stairs; the bells; the ticket window; the view | Be up there a little before the hour for the bells, or after for your ears. | The stairs are one way for most of the day.
the local simcard | the registration; the kiosk; the data plan; the old number | Kiosks outside the airport sell it for half. | Registration needs a document and patience.
the thermal baths | the locker band; the cold plunge; the chess players; the evening ticket | Evening tickets are cheaper and the steam is thicker. | Bring your own slippers.
the camping site | the shade; the hot showers; the pegs; the quiet hours | A pitch by the hedge has shade after lunch. | Showers are hot before seven.
the overnight layover | the lounge; the capsule hotel; the bench; the early gate | A capsule costs less than three airport meals. | Gates open early for those who ask.
the winter market | the mulled wine; the mug deposit; the wooden toys; the crowd | Go on a weekday and before dark. | The deposit is higher than the mug is worth.
the waterfall hike | the slippery stones; the spray; the upper trail; the parking fee | The upper trail is drier and emptier. | Spray ruins phones quietly.
the theatre tickets | the matinee; the standing place; the dress code; the interval | Standing places go on sale on the day. | The dress code is a clean shirt.
the tram line along the river | the window seat; the terminus; the rush hour; the old carriages | The old carriages run at weekends. | The terminus has the best cake.
the volcano trail | the permit; the ash; the wind jacket; the guide | Permits are checked at the second gate. | Ash gets into everything with a zip.
the festival weekend | the wristband; the campsite; the headliner; the earplugs again | Rooms within walking distance are gone by spring. | The small stage is where the fun is.
the beach with the red flags | the current; the lifeguard; the sun shade; the rock pools | A current is left sideways and never straight. | The pools are best at low water.
the bicycle route through the valley | the tailwind; the gravel section; the repair kit; the ice cream stop | Valley winds turn at noon, so ride up early. | Gravel asks for softer tyres.
the embassy appointment | the form; the photo size; the queue; the copy shop | The copy shop next door earns well from forgotten forms. | Photos must not be older than half a year.
the house swap | the key handover; the plants; the bin day; the inventory | Write down how the shower works. | A swap with a family brings toys.
the sleeper bus | the lower bunk; the blanket; the rest stop; the curtain | The front is calmer than the back. | Rest stops are shorter than they sound.
the botanical garden | the glasshouse; the cactus room; the tea pavilion; the members' gate | The glasshouse is the place for rainy days. | Labels are for those who come twice.
"""

_RESEARCH = """
the literature review | the search terms; the inclusion rule; the grey literature; the duplicate entries | Two readers who disagree early write a better rule. | Grey literature holds the null results.
the pilot survey | the wording; the response rate; the skipped items; the incentive | Items that many people skip are items nobody understood. | A pilot of thirty finds most of the bad wording.
the regression model | the interaction; the collinear predictors; the residuals; the reference level | Plot the residuals before reading any coefficient. | The interaction carries the whole story or none of it.
the interview transcripts | the coding frame; the pauses; the second coder; the anonymised names | The frame settles after about eight interviews. | Pauses are data as well.
the lab protocol | the incubation step; the control plate; the buffer; the pipetting order | The control plate should be handled by the same hands. | Write the order down, not only the volumes.
the citation manager | the broken keys; the shared library; the capital letters; the export | Keys break when two people rename one entry. | Braces protect the capitals.
the reviewer comments | the second reviewer; the extra analysis; the polite reply; the deadline | Answer the easy points first and the tone improves. | The extra analysis belongs in the supplement.
the grant budget | the travel line; the overhead; the student hours; the equipment | Overhead is added last and hurts most. | Reviewers read the travel line first.
the conference abstract | the word limit; the headline result; the title; the figure | One result in the title beats three in the text. | Leave the methods to a single sentence.
the missing data | the imputation; the dropout; the sensitivity check; the flag column | Ask why it is missing before asking how to fill it. | The flag column is a predictor of its own.
the ethics application | the consent form; the storage plan; the vulnerable groups; the amendment | Amendments are quicker than a fresh application. | The storage plan should name a person.
the figure for the paper | the colour scale; the axis break; the caption; the vector format | The caption must stand alone. | A broken axis has to shout that it is broken.
the replication attempt | the original materials; the effect size; the power; the preregistration | Write to the authors early, most of them answer. | Power for half the published effect is the sane choice.
the sensor calibration | the drift; the reference block; the warm-up time; the log sheet | Most drift happens in the first hour after switching on. | Calibrate at both ends and check the middle.
the archive visit | the reading room; the box list; the pencil rule; the camera permit | Order the boxes a week ahead. | The index cards know more than the catalogue.
the statistics consultation | the design; the question; the clustered data; the sample plan | Come with the question and not with the test. | Clusters make a sample smaller than it looks.
the open data deposit | the readme; the licence; the file names; the embargo | A readme written on the last day is read for ten years. | Plain formats outlive software.
the field season | the permits; the weather days; the batteries; the local guide | Plan one lost day in four. | The guide decides the success.
the simulation runs | the random seed; the grid size; the burn-in; the storage | Halve the grid once, to know what the grid does. | Store the parameters with the output.
the thesis outline | the second chapter; the red thread; the page count; the introduction | Write the introduction last. | Each chapter should survive on its own.
the systematic error in the balance | the draught; the zero point; the tray; the service date | A closed door mends half of it. | Weigh the same block each morning.
the annotation guide | the edge cases; the agreement score; the examples; the tie rule | Ten good examples replace three pages. | Agreement falls with the label count.
the seminar talk | the opening slide; the time limit; the questions; the live demo | One idea for each five minutes. | Record the demo in case the network sulks.
the survey weights | the margins; the trimming; the variance; the panel | Trim the extreme weights and say so. | Weights cost variance, always.
the spectral analysis | the window; the noise floor; the peaks; the sampling rate | A longer window sharpens peaks and hides change. | Look at the floor before the peaks.
the preprint | the server; the version note; the feedback; the embargo rule | Put the date of each version on its first page. | Comments come from people you did not cite.
the cell cultures | the medium; the passage number; the contamination; the freezer | Note the passage number on every tube. | Contamination comes with the visitors.
the theory section | the definitions; the diagram; the rival account; the scope | State what would prove you wrong. | A diagram finds the missing arrow.
the teaching load | the exercise sheets; the grading; the office hours; the tutor plan | Grade one question at a time and not one student. | Sheets age well if dates are left out.
the map layers | the projection; the borders; the legend; the resolution | The wrong projection shifts the fine layer by a street. | Borders change more often than rivers.
the time series | the trend; the season; the break point; the lag | Take the season out before asking about the trend. | A break point needs a reason outside the data.
the corpus of letters | the spelling; the scans; the handwriting; the metadata | Spelling settles late, search for the variants. | Metadata is the cheaper half of the work.
the chemistry order | the purity; the delivery time; the safety sheet; the fridge space | Lead times double before the holidays. | The safety sheet goes on the door.
the microscope booking | the stage; the objective; the evening slot; the lamp hours | Evening slots are free and steady. | Let the stage warm up first.
the meta-analysis | the funnel plot; the moderators; the outcome scale; the small studies | Small studies shout and large ones mumble. | Convert all outcomes before looking.
the student project | the weekly goal; the notebook; the first result; the write-up | A small result by week three keeps a project alive. | The notebook is part of the mark.
the observation sheet | the rating scale; the two observers; the interval; the comments field | Short intervals tire observers out. | The comments field saves the study.
the equipment loan | the signature; the case; the missing adapter; the return date | Photograph the case before it leaves. | Adapters never come back alone.
the translation of the questionnaire | the back-translation; the idioms; the pretest; the layout | Idioms do not survive the way back. | Layout changes answers too.
the power outage in the lab | the freezers; the backup generator; the samples; the call list | Freezers hold for a day if nobody opens them. | The call list was on the dark server.
the patent search | the claims; the family; the priority date; the attorney | Read the claims, the rest is scenery. | Families hide behind other titles.
the outreach day | the demonstration; the children; the poster; the sign-up sheet | Anything with bubbles wins. | A poster is read from two metres.
"""

_STYLE_TOPICS = {
    "small_talk": _SMALL_TALK, "coding": _CODING, "ops": _OPS,
    "support": _SUPPORT, "travel": _TRAVEL, "research": _RESEARCH,
}

# ---------------------------------------------------------------------------------------------
# Sentence templates. {t} topic, {a} and {b} two different aspects of it, {w} when, {d} a stretch
# of time, {p} a person without a name, {n} a small number in words.
# ---------------------------------------------------------------------------------------------

_WHEN = ["this week", "before lunch", "over the weekend", "tomorrow morning", "after work",
         "later today", "first thing tomorrow", "on a quiet afternoon", "next week",
         "some evening", "in the next few days", "when you have a free moment"]
_DUR = ["ten minutes", "half an hour", "a quarter of an hour", "an afternoon", "a couple of days",
        "an evening", "twenty minutes", "most of a morning", "a day or so", "a lunch break"]
_PERSON = ["a colleague", "somebody I trust", "a friend of a friend", "one of the others",
           "the person before me", "an old hand", "somebody on the forum", "a cousin of mine",
           "my flatmate", "a newcomer", "the quiet one in the group", "the last person I asked"]
_NUM = ["two", "three", "four", "five", "a handful of", "a few"]

_USER = {
    "small_talk": [
        "So, {t}. Today it was mostly {a}. What would you do?",
        "Do you find {a} worth the fuss with {t}?",
        "I keep thinking about {t}, and {a} in particular.",
        "You will laugh, but {t} kept me busy for {d}.",
        "Any opinion on {t}? I mean {a}, not the rest.",
        "{p} told me not to worry about {a}. Easy to say with {t}.",
        "Tell me something cheerful about {t}.",
        "I promised to deal with {t} {w}. Where do I begin?",
        "Back to {t} for a second: how do people usually handle {a}?",
        "Honestly, {a} will drive me up the wall.",
        "We argued about {t} at breakfast, believe it or not. {b} came up as well.",
        "Small update on {t}: no progress with {a}.",
        "Would you rather live with {a} or with {b}?",
        "Remind me why anybody bothers with {t}.",
        "I gave up on {a} for today. Talk to me about {b} instead.",
        "Do you think {t} will sort itself out {w}?",
        "{t} again! I spent {d} on {a}.",
        "What is the polite way to bring up {a}?",
        "My plan for {t} is to ignore {a} and enjoy {b}.",
        "Right, {a}. Give me the short version.",
        "Have you ever heard a good story about {t}?",
        "I asked {p} about {a} and got a shrug.",
        "Could {a} be the reason I am so fed up with {t}?",
        "Let us talk about {t} while my tea cools down.",
    ],
    "coding": [
        "Can you look at {t}? I suspect {a}.",
        "I changed {a} and now {t} behaves differently.",
        "What is the cleanest way to handle {a} in {t}?",
        "Before I touch {t}: should {a} and {b} stay together?",
        "{t} again. I spent {d} on {a} without a result.",
        "Do we want a test for {a}, or will {b} do?",
        "I would like to simplify {t} {w}. Any objections?",
        "{p} suggested dropping {a}. Is that safe?",
        "Walk me through {t} once more, please, mostly {a}.",
        "Why should {a} matter for {t} at all?",
        "Quick check: would {a} be the right place for this change?",
        "I pushed a small fix for {a}. What about {b}?",
        "How would you explain {t} to a new colleague?",
        "Let us park {b} and finish {a} first.",
        "Is there a known trick for {a}?",
        "I get {n} warnings about {a}, can I ignore them?",
        "The diff for {t} is growing. Where would you cut it?",
        "Please compare {a} with {b} in a few sentences.",
        "Would a smaller version of {t} do for now?",
        "Something about {a} smells. Tell me what you see.",
        "Next step for {t}?",
        "I reverted {a}, it made things worse.",
        "How long should {t} take, roughly? {d}?",
        "Could {b} hide a bug in {a}?",
    ],
    "ops": [
        "Anything new on {t}?",
        "I looked at {a} for {d}, nothing obvious. What about {b}?",
        "Should we touch {a} {w} or leave {t} alone?",
        "{p} thinks {t} is down to {a}.",
        "What would you check first for {t}?",
        "Would it be safe to change {a} during the day?",
        "Give me a short summary of {t} for the standup.",
        "We saw {t} {n} times. Coincidence or {a}?",
        "How do other teams deal with {a}?",
        "Let us write down what we know about {t}.",
        "I silenced one thing and now I hear about {a}. Would {b} be next?",
        "Can {t} wait until next week?",
        "Who usually looks after {a}?",
        "I would like a runbook entry for {t}, mostly {a}.",
        "Could {b} explain what we see in {a}?",
        "Quick sanity check on {t}: do we need {a} at all?",
        "The review asked about {a}. What do I answer?",
        "Back from lunch. Where did we leave {t}?",
        "What is the cheapest thing we can do about {a}?",
        "How would we notice if {t} came back?",
        "Please draft a line about {t} for the weekly report.",
        "I have {d} left, what helps {t} most?",
        "Did anyone touch {a} before the last release?",
        "Any reason not to automate {a}?",
    ],
    "support": [
        "Hello, I have a question about {t}, more exactly {a}.",
        "It is me again, still {t}. I checked {a}.",
        "How long does it take to sort out {t}?",
        "The page says something about {a}, what does that mean?",
        "I tried what you said about {a} and it did not help. Is it {b}?",
        "Do I need to send anything for {t}?",
        "Somebody mentioned {b}, could that apply to {t}?",
        "Would you cover {a}?",
        "Sorry to bother you with {t}. I spent {d} on it.",
        "Could you explain {a} in plain words?",
        "I would rather keep it than return it. What can I do about {a}?",
        "{p} had the same with {t} and got help quickly.",
        "Next question: {t}. Where do I find {a}?",
        "Can this wait, or should I deal with {a} {w}?",
        "What do most people do about {t}?",
        "Thanks. And {b}?",
        "I looked for {a} and could not find it.",
        "Is {t} a known thing with you?",
        "Please tell me that {a} will be easy.",
        "My patience with {t} is running out, to be frank.",
        "Would a photo of {a} help you?",
        "One more thing about {t}, if you have a minute.",
        "I have read the page on {t} {n} times now.",
        "So I only need to look at {a}, right?",
    ],
    "travel": [
        "What should I know about {t}? I worry a little about {a}.",
        "Should we plan around {a}?",
        "We have {d} for {t}. Enough?",
        "{p} raved about {t}. True?",
        "How do people usually handle {a}?",
        "I would skip {b} for {a}. Do you agree?",
        "Tell me about {t} as if I had never left home.",
        "Should we book {t} ahead or decide {w}?",
        "Any trick for {a}?",
        "Rainy day question: {t}, yes or no?",
        "What goes wrong most often with {t}?",
        "I read {n} pages about {t} and am none the wiser about {a}.",
        "Would you risk {t} with children?",
        "Back to {t}. Did we settle {a}?",
        "How crowded would {t} be at this time of the year?",
        "Would locals bother with {a}?",
        "What is the cheap version of {t}?",
        "And {b}? Nobody mentions it.",
        "I am tempted by {t}, mostly because of {a}.",
        "Be honest: should I call {t} a tourist trap?",
        "How early do we have to be up for {a}?",
        "Let us put {t} on the maybe list.",
        "One thing less to carry would be nice. Does {t} need much?",
        "If we only manage one of them, {a} or {b}?",
    ],
    "research": [
        "Could we go over {t}? I am unsure about {a}.",
        "What is the usual way to report {a}?",
        "I spent {d} on {t} and want a second opinion on {a}.",
        "{p} would drop {a} altogether. Would you?",
        "Could {b} threaten what we say about {a}?",
        "Where would you start with {t}?",
        "Please summarise our position on {t}.",
        "Should {a} worry us, or only look untidy?",
        "How much detail about {a} belongs in the text?",
        "Next on my list: {t}.",
        "I have {n} open questions on {t}, all about {a}.",
        "Can {t} wait until the draft is out?",
        "What would a sceptical reader say about {a}?",
        "I changed {a} slightly. Should I redo {b}?",
        "Is there a rule of thumb for {a}?",
        "Do you know a good example of {t} done well?",
        "We disagree about {a} in the group. What is your view?",
        "Let us settle {a} and come back to {b} {w}.",
        "How would you teach {t} to a first-year student?",
        "Would it be honest to leave out {a}?",
        "The draft says too little about {t}, I think.",
        "Short question on {t}: before or after {b}?",
        "My notes on {a} are a mess, help me order them.",
        "Is {t} finished or do I only wish it were?",
    ],
}

_OPEN = {
    "small_talk": [
        "Ha, that is typical of {t}.", "Oh, {a}, the classic.", "I would not lose sleep over {a}.",
        "With {t}, patience is most of the answer.", "That sounds like {t} all over.",
        "There are worse ways to spend {d}.", "Everybody has a story about {a}.",
        "You are not the first to be puzzled by {a}.", "Let me think about {t} for a moment.",
        "I like that you take {t} seriously.", "My honest view of {a} is a mild one.",
        "It depends on how much you mind {a}.", "Cheerful news first: {b} can wait.",
        "Between {a} and {b} I would take the second.",
    ],
    "coding": [
        "I read through {t} again.", "The first thing I would check is {a}.",
        "Yes, {a} can cause exactly that.", "I take {b} for a symptom here.",
        "Let us separate {a} from {b}.", "Short answer for {t}: keep it small.",
        "I would start with {a}, since it is cheap to rule out.", "There are {n} ways to do this for {t}.",
        "My guess for {t} is a plain oversight.", "I had a look at {a} and at {b}.",
        "That change to {a} is fine on its own.", "It helps to write down what {t} should promise.",
        "For {t} I would resist anything clever.", "Good that you stopped before {b}.",
    ],
    "ops": [
        "Here is what I know about {t}.", "I would start with {a} and work outwards.",
        "Nothing dramatic about {t} so far.", "{b} can wait, {a} should not.",
        "The graphs for {t} are calm at the moment.", "I checked {a} against last month.",
        "Two things stand out with {t}.", "My money is on {a}.", "It looks like {b} rather than {a}.",
        "We can leave {t} as it is for now.", "As far as I can see, {a} changed first.",
        "Let me sum up {t} in a few lines.", "There is a short answer and a long one about {a}.",
        "We have met {t} before.",
    ],
    "support": [
        "Thank you for writing about {t}.", "I am sorry about the trouble with {t}.",
        "Let us look at {a} together.", "Good news: you can check {a} quickly.",
        "I understand, {t} can be tiresome.", "For {t} there are {n} simple steps.",
        "Most questions about {t} come down to {a}.", "You did the right thing with {a}.",
        "Thanks for the details on {a}.", "I have made a remark about {t} in your case.",
        "That is a fair question about {b}.", "Please do not worry about {b} yet.",
        "We see {t} now and then.", "Let me explain {a} in plain words.",
    ],
    "travel": [
        "I would put {t} high on the list.", "With {t} the early hours decide.",
        "I would not call {a} a problem.", "Plan {d} for {t} and you are safe.",
        "Opinions on {t} differ, mine is a friendly one.", "The thing to know about {t} is {a}.",
        "Locals would laugh about {b}, and then do the same.", "Yes, but mind {a}.",
        "It depends on the season and on {a}.", "There are {n} ways to do {t}.",
        "Let us compare {a} with {b}.", "For {t} I would decide {w}.",
        "That is easily arranged, apart from {a}.", "{t} will reward those who are a little prepared.",
    ],
    "research": [
        "On {t} I would be careful and brief.", "Let us take {a} first.",
        "I take {b} for the weaker spot.", "A sceptical reader will ask about {a}.",
        "There are {n} defensible ways to treat {a}.", "Your instinct about {t} is sound.",
        "I reread the part on {t}.", "It is untidy, yes, though {a} can be defended.",
        "For {t} the order of steps counts.", "We should not oversell {a}.",
        "The usual practice for {a} is dull and good.", "I would separate {a} from {b} in the text.",
        "Here is how I see {t} today.", "One paragraph on {a} ought to be enough.",
    ],
}

_MID = {
    "small_talk": [
        "Start with {a}, and leave {b} for a rainy day.",
        "{p} swears by ignoring {a}, and looks happy enough.",
        "It usually takes {d} and a bit of swearing to get past {a}.",
        "I would make a cup of tea first and look at {a} afterwards.",
        "If {a} bothers you again, try the opposite of what you did last time.",
        "People tend to blame {a} when they really mean {b}.",
        "You could ask {p} to have a look {w}.",
        "The trick with {t} is to stop just before it becomes work.",
        "There is no shame in paying somebody to deal with {a}.",
        "A little every day beats one heroic attempt at {a}.",
        "I once read that {a} and {b} are two halves of the same complaint.",
        "Nobody at the table would admit it, but they all enjoy {t}.",
        "My advice on {b} is to let it be for now.",
        "Take a picture of {a}, you will laugh about it later.",
        "In {n} weeks you will have forgotten {a} completely.",
        "For some people {a} is the whole charm of {t}.",
        "Think of {b} as the price of admission.",
        "A bit of music makes {a} half as annoying.",
        "You might even miss {a} once it is gone.",
        "Set a limit of {d} and stop when it rings.",
        "The best stories about {t} begin with {b}.",
        "I would not mention {a} in front of the others, though.",
        "Half the street has an opinion on {t}, and none of them agree.",
        "Leave {a} alone for {d} and see what happens.",
        "With {b} it helps to lower the expectations a notch.",
        "If it were up to me, {a} would get a medal.",
        "Try it once without {b}, just to compare.",
        "The funny thing about {t} is how quickly one gets used to it.",
        "Some of it is luck, and some of it is {a}.",
        "You can always come back to {b} {w}.",
        "It sounds as though {t} has become a hobby.",
        "I would put {a} at the bottom of the list, right under {b}.",
        "Somebody ought to write a song about {a}.",
        "That leaves {b}, which is hardly urgent.",
        "Whatever you decide about {a}, decide it after a meal.",
        "Next to {b}, the rest of {t} is child's play.",
    ],
    "coding": [
        "Move {a} behind a small function so that it can be tested alone.",
        "I would write the failing case for {b} before changing anything.",
        "Right now {a} and {b} know too much about each other.",
        "It takes about {d} to do properly, and less if {b} stays as it is.",
        "Add an assertion near {a}, and the next failure will speak for itself.",
        "Keep the old behaviour of {a} behind a switch until the release is out.",
        "Should {b} really be needed, a comment can say why.",
        "The simplest fix is to delete {a} and see what complains.",
        "I would avoid touching {b} in the same commit.",
        "There is a subtle ordering between {a} and {b} that nobody wrote down.",
        "A table of inputs and expected results would cover {a} nicely.",
        "Rename it first, since half of the confusion about {t} is in the names.",
        "For {a}, an early return reads better than another level of nesting.",
        "{p} can review the part about {b} {w}.",
        "The profiler would show whether {a} costs anything at all.",
        "Please run the whole suite after {b}, and not only the near tests.",
        "We could split {t} into {n} steps that land one after another.",
        "I see no caller that relies on {a} any more.",
        "The documentation promises more about {b} than the code does.",
        "Put a bound on {a}, even a generous one.",
        "If this breaks somebody, it will be through {b}.",
        "I would log it once at the edge and leave {a} silent.",
        "Reading {t} from the bottom up makes the intent clearer.",
        "My concern with {b} is what happens when it is empty.",
        "That makes {a} easy to swap out in a test.",
        "In the worst case we revert {a} and lose nothing.",
        "A property test would be a good match for {a}.",
        "Let the caller decide about {b}, it knows more.",
        "The comment above {a} has been wrong for a while.",
        "You can check it {w} with a build from scratch.",
        "I would rather have a plain loop than a smart {t}.",
        "An upper bound makes {b} predictable, which is all we need.",
        "Once {a} can stand alone, the rest of {t} follows.",
        "Leave a note for {p} about {b} in the description.",
        "The order matters: {a}, then {b}, then the cleanup.",
        "Nothing in {t} needs to be faster than it is today.",
    ],
    "ops": [
        "I see nothing odd in {a} for this time of the day.",
        "I would compare {b} with the same hour of last week.",
        "If we change {a}, let us change nothing else in the same window.",
        "Rolling it back takes about {d}.",
        "The next step is a look at {b} with {p}.",
        "We have seen {a} before, and it went away with the release after.",
        "A graph of {b} next to {a} would settle it.",
        "I would not page anybody for {a}.",
        "The runbook mentions {b} only in passing.",
        "One host is enough for a try with {a}.",
        "It makes sense to note the state of {b} before we touch it.",
        "Nobody outside the team noticed {t}.",
        "The trend of {a} is flat, which is what we want.",
        "Let us give {b} {d} and look again.",
        "I would open a ticket for {a} and link it from the handbook.",
        "Most of {t} could be automated, apart from {b}.",
        "{p} has a small script that covers {a}.",
        "The cheapest measure is a limit on {b}.",
        "What worries me more than {a} is that nobody owns it.",
        "There is no sign of {b} on the other site.",
        "We can do this during the day as long as {a} stays put.",
        "I have asked {p} for the history of {b}.",
        "A dry run on staging would show what {a} does.",
        "That gives us {n} days of margin.",
        "For the report: {t} had no effect on customers.",
        "Should {b} grow again, we take the second option.",
        "The alert should name {a} in its first line.",
        "I would write the check for {b} before the fix.",
        "After the change, watch {a} for {d}.",
        "It is not elegant, but {b} will hold until the next quarter.",
        "Please keep {a} out of the shared dashboard for now.",
        "The old setting for {b} is in version control.",
        "Let us plan {a} for {w} and tell the others.",
        "With {n} hosts less, {b} would be the bottleneck.",
        "The vendor calls {a} expected behaviour, which is one way to put it.",
        "All in all, I would call {t} annoying rather than dangerous.",
    ],
    "support": [
        "Please have a look at {a} and tell me what you see.",
        "Should {b} not help, we will find another way.",
        "It usually takes {d} until everything shows up correctly.",
        "You do not have to send anything for {a}.",
        "Many customers overlook {b}, and that is our fault for hiding it.",
        "A photo of {a} taken by daylight would be helpful.",
        "I would leave {b} as it is for the moment.",
        "Our workshop knows {a} well.",
        "After {a}, the rest happens by itself.",
        "You can also do this from your phone, apart from {b}.",
        "We will cover the cost of {a}, of course.",
        "If that sounds complicated, {p} can walk you through it.",
        "The page about {t} is being rewritten, I know it is unclear.",
        "Try {a} once more {w}, systems are quieter then.",
        "There is no deadline for {b}.",
        "I have asked the team that looks after {a}.",
        "In {n} of five cases this is all there is to it.",
        "Please keep {b} until we are finished.",
        "Should {a} look different from the picture, stop there.",
        "The difference between {a} and {b} is mostly in the wording.",
        "You will get a short message when there is news about {t}.",
        "It is safe to ignore {b} in the meantime.",
        "For {a} the second option on the page is the right one.",
        "Nothing is lost, {b} will only take some time.",
        "I can add {a} to your case, so you need not repeat it.",
        "That part of {t} is handled by our partner.",
        "If you prefer, we exchange it instead of looking at {b}.",
        "Please unplug it, count to thirty, and look at {a} again.",
        "You are right that {b} ought to be simpler.",
        "We answer questions about {a} until eight in the evening.",
        "A small credit for {t} is on its way.",
        "The easiest way is to start with {a} and skip {b}.",
        "I would wait for {d} before trying again.",
        "Our records show nothing unusual about {b}.",
        "With {a} out of the way, {t} should be solved.",
        "If anything about {b} changes, simply reply here.",
    ],
    "travel": [
        "Go for {a} early, and keep {b} for the afternoon.",
        "It takes {d} with breaks, less if you hurry.",
        "{p} did it last spring and only complained about {b}.",
        "I would book {a} ahead and improvise the rest.",
        "If the weather turns, {b} is the part to drop.",
        "You will want small change for {a}.",
        "Most visitors turn back at {b}, which is why it is worth going on.",
        "Do not let {a} put you off.",
        "The second day is better for {t} than the first.",
        "Bring something to eat, since {b} sells only crisps.",
        "Ask at the desk about {a}, they know the current state.",
        "With children, allow twice the time for {b}.",
        "There is a quieter entrance near {a}.",
        "I would check {b} again {w}.",
        "The official page is out of date about {a}.",
        "For a first visit {t} is a good choice, for a fifth one too.",
        "Take the slow option, {a} is half of the pleasure.",
        "It is cheaper on weekdays, apart from {b}.",
        "A scarf solves most problems with {a}.",
        "Many people combine {t} with a long lunch.",
        "In high season {b} means a wait of {d}.",
        "Photographs make {a} look larger than it is.",
        "You can leave the bags near {b} for a small fee.",
        "The way back is shorter if you skip {a}.",
        "I would not pay extra for {b}.",
        "In {n} visits I would never get tired of {a}.",
        "Comfortable shoes matter more than {b}.",
        "The locals come for {a} and leave before the crowd.",
        "If you miss {b}, there is always another one.",
        "Write the address down, phones fail exactly near {a}.",
        "A friendly word helps with {b} more than money does.",
        "On balance I would keep {t} and shorten something else.",
        "You could do {a} on the last morning.",
        "Nobody has ever regretted {a} on a clear day.",
        "Leave some room in the plan after {b}.",
        "It is fine to do {t} badly, that is what the next trip is for.",
    ],
    "research": [
        "I would report {a} in one sentence and give the details in the supplement.",
        "The argument does not rest on {b}, so let us not lean on it.",
        "A check of {a} takes {d} and buys a calm conversation later.",
        "Should {b} change the conclusion, we have to say so.",
        "{p} handled {a} the same way and was not questioned.",
        "Keep a dated note of every decision about {b}.",
        "The cleanest option is to fix {a} before looking at outcomes.",
        "I would ask {p} to repeat {b} blind.",
        "Two of the papers on {t} disagree because of {a}.",
        "It would be fair to call {b} a limitation.",
        "We can show {a} with and without the doubtful part.",
        "Readers forgive {b} if it is stated on the first page.",
        "Nothing in {t} needs a new method.",
        "A table is better than prose for {a}.",
        "Let us agree on {b} in writing {w}.",
        "The older literature treats {a} as noise.",
        "My worry about {b} is that it correlates with everything else.",
        "There is a gap between {a} and what the text claims.",
        "I would move {b} to the methods and drop the apology.",
        "With {n} more cases the picture of {a} would be steadier.",
        "The choice about {a} is defensible, the silence about it is not.",
        "It helps to draw {t} on one sheet of paper.",
        "For {b} a simple count is more convincing than a test.",
        "We might be wrong about {a}, and the text should allow that.",
        "If time is short, leave {b} and finish {a}.",
        "A second person should be able to repeat {t} from the notes.",
        "The sentence on {b} promises too much.",
        "I would look at the raw values of {a} before anything else.",
        "Let the figure carry {b}, the text need not repeat it.",
        "One can defend {a} on practical grounds alone.",
        "Whoever reviews {t} will begin with {b}.",
        "I marked {n} places where {a} could be clearer.",
        "That part of {t} is solid.",
        "Put {b} before {a}, and the reader will follow.",
        "A short appendix about {a} would satisfy most people.",
        "The honest wording for {b} is that we do not know.",
    ],
}

_CLOSE = {
    "small_talk": [
        "And then let us talk about {b}.", "Tell me how it goes {w}.", "That is all the wisdom I have on {t}.",
        "Anyway, enjoy {b} while it lasts.", "Keep me posted about {a}.", "What does the rest of the house say about {t}?",
        "Worst case, it makes a good story.", "I am on your side about {b}.", "Fingers crossed for {t}.",
        "Is there more to it than {a}?", "Let it rest for {d}.", "You have earned a biscuit after {a}.",
        "Somehow {t} will work out.", "How did {b} go in the end?",
    ],
    "coding": [
        "Shall I draft the change for {a}?", "Let me know what the tests say about {b}.",
        "I can prepare a small patch {w}.", "After that, {t} should be quiet.", "Then we look at {b} with fresh eyes.",
        "That would be my order for {t}.", "Tell me if you still see {a} fail after that.", "I will leave {b} untouched until you decide.",
        "It is a small step, but {t} needs it.", "If you agree, I start with {a}.", "We can always widen it to {b} later.",
        "No need to rush {t}.", "Does that match what you saw in {a}?", "Everything else about {t} can stay.",
    ],
    "ops": [
        "I will look again {w}.", "Shall I write the ticket for {a}?", "Tell me if you see {b} move.",
        "Until then I would leave {t} alone.", "I keep an eye on {a}.", "That should be enough for {t} today.",
        "Let us review {b} {w}.", "No action on {t} for now.", "I can draft the runbook line about {a}.",
        "We close {t} after {n} quiet days.", "If it returns, we start with {a}.",
        "I have noted {b} for the handover.", "Anything else on {t}?", "So far, so boring, as it should be with {t}.",
    ],
    "support": [
        "Is there anything else about {t} I can help with?", "Please write again if you see no change in {a}.",
        "Thank you for your patience with {t}.", "I will get back to you {w}.", "Does that answer the question about {b}?",
        "We will keep the case on {t} open.", "Have a pleasant day, and good luck with {a}.", "Please tell me whether {b} worked.",
        "I am glad to explain {a} once more.", "That should settle {t}.", "Until then, {b} can stay as it is.",
        "Sorry again for {t}.", "Would that suit you for {t}?", "Let me know about {a} {w}.",
    ],
    "travel": [
        "Shall I add {t} to the plan?", "Tell me if {a} is still too much.", "Then {b} fits in as well.",
        "Enjoy {t}, whatever the weather.", "I would decide about {b} {w}.", "Want a rough timetable for {t}?",
        "That leaves time for {b}.", "Keep {a} as a reserve.", "Pack light and do not fret about {b}.",
        "You will thank me for skipping {b}.", "In short: {t}, yes, with {a} in mind.", "I can look up alternatives to {a}.",
        "And bring water.", "Which of you minds {b} the most?",
    ],
    "research": [
        "Shall I draft the passage on {a}?", "Let us return to {b} {w}.", "I would call {t} finished after that.",
        "Tell me what the group says about {a}.", "That would be enough for a first version of {t}.",
        "We can revisit {b} when the comments are in.", "I will mark it in the text on {t}.", "Do you want a short list of sources for {a}?",
        "The rest of {t} can wait.", "Then {b} follows almost by itself.", "It is worth {d}, no more.",
        "I would sleep on {b}.", "Does that fit what you had in mind for {t}?", "Otherwise I would leave {a} as it stands.",
    ],
}


def _parse(text):
    topics = []
    for line in text.strip().splitlines():
        name, aspects, first, second = [part.strip() for part in line.split("|")]
        topics.append((name, [a.strip() for a in aspects.split(";")], [first, second]))
    return topics


_TOPICS = {style: _parse(text) for style, text in _STYLE_TOPICS.items()}


def _capital(sentence):
    out, start = [], True
    for ch in sentence:
        if start and ch.isalpha():
            ch, start = ch.upper(), False
        elif ch in ".!?":
            start = True
        elif not ch.isspace():
            start = False if ch.isalnum() else start
        out.append(ch)
    return "".join(out)


def _fill(rng, template, topic):
    name, aspects, _ = topic
    i = rng.below(len(aspects))
    j = (i + 1 + rng.below(len(aspects) - 1)) % len(aspects)
    text = template
    for key, value in (("{t}", name), ("{a}", aspects[i]), ("{b}", aspects[j])):
        text = text.replace(key, value)
    for key, values in (("{w}", _WHEN), ("{d}", _DUR), ("{p}", _PERSON), ("{n}", _NUM)):
        while key in text:
            text = text.replace(key, rng.pick(values), 1)
    return _capital(text)


def _fresh(rng, templates, topic, used, said=None):
    """A sentence not in `used`, from a template not in `said` (those of the same answer) if there is one."""
    left = [i for i in range(len(templates)) if said is None or i not in said] or range(len(templates))
    text = ""
    for _ in range(60):
        i = rng.pick(left)
        text = _fill(rng, templates[i], topic)
        if text not in used:
            break
    used.add(text)
    if said is not None:
        said.add(i)
    return text


def _answer(rng, style, topic, words, used):
    target = max(4, words + rng.between(-(words // 4), words // 4))
    parts = [_fresh(rng, _OPEN[style], topic, used)] if rng.below(10) < 7 else []
    own = [s for s in topic[2] if s not in used]
    if own and rng.below(10) < 8:
        sentence = rng.pick(own)
        used.add(sentence)
        parts.append(sentence)
    count, said = sum(len(p.split()) for p in parts), set()
    while count < target - 6:
        sentence = _fresh(rng, _MID[style], topic, used, said)
        parts.append(sentence)
        count += len(sentence.split())
    if not parts or (count < target + 4 and rng.below(10) < 4):
        parts.append(_fresh(rng, _CLOSE[style], topic, used))
    if len(parts) > 7:      # a long answer comes in paragraphs
        paragraphs, at = [], 0
        while at < len(parts):
            step = rng.between(3, 6)
            paragraphs.append(" ".join(parts[at:at + step]))
            at += step
        return "\n\n".join(paragraphs)
    return " ".join(parts)


def exchanges(style, count, words, seed):
    """`count` pairs (user text, assistant text); an answer has about `words` words."""
    rng = _Rng("exchanges|%s|%d|%s" % (style, words, seed))
    topics, used, out, queue = _TOPICS[style], set(), [], []
    while len(out) < count:
        if not queue:
            queue = rng.shuffled(range(len(topics)))
        topic = topics[queue.pop()]
        for _ in range(rng.between(1, 3)):      # people stay with a subject for a moment
            if len(out) == count:
                break
            user = _fresh(rng, _USER[style], topic, used)
            out.append((user, _answer(rng, style, topic, words, used)))
    return out


# ---------------------------------------------------------------------------------------------
# Tool outputs
# ---------------------------------------------------------------------------------------------

_SERVICES = ["ingest", "scheduler", "gateway", "mailer", "indexer", "thumbnailer", "ledger", "catalogue",
             "sessions", "exporter", "notifier", "pricing", "inventory", "geocoder", "archiver", "relay"]
_VERBS = ["fetch", "merge", "render", "collect", "prune", "resolve", "publish", "encode", "validate",
          "schedule", "compact", "rebuild", "transfer", "sample", "flatten", "rotate"]
_NOUNS = ["batch", "record", "segment", "payload", "window", "cursor", "channel", "bucket", "template",
          "profile", "snapshot", "manifest", "request", "entry", "vector", "column"]
_HOSTS = ["alder", "birch", "cedar", "dogwood", "elm", "fir", "gorse", "hazel", "juniper", "larch", "maple", "oak"]
_LOG_LINES = [
    ("INFO", "{s}.worker-{k}", "finished {v}_{o} items={m} took={q}ms"),
    ("INFO", "{s}.http", "GET /v2/{o}s/{m} status=200 bytes={x} dur={q}ms"),
    ("INFO", "{s}.http", "POST /v2/{o}s status=201 dur={q}ms"),
    ("DEBUG", "{s}.pool", "checkout ok idle={k} busy={k2} waiters=0"),
    ("DEBUG", "{s}.cache", "hit ratio 0.{r} over last {m} lookups"),
    ("INFO", "{s}.scheduler", "next run of {v}_{o} in {q}s"),
    ("WARN", "{s}.http", "slow response /v2/{o}s/{m} dur={x}ms threshold=900ms"),
    ("INFO", "{s}.lifecycle", "config reloaded, {k} keys changed"),
    ("DEBUG", "{s}.net", "keepalive to {h}-{k} rtt={k2}ms"),
    ("INFO", "{s}.worker-{k}", "{v} {o} {m}: nothing to do"),
    ("WARN", "{s}.worker-{k}", "{v} {o} {m}: attempt 1 failed, will retry in {q}ms"),
    ("INFO", "{s}.worker-{k}", "{v} {o} {m}: succeeded on attempt 2"),
    ("DEBUG", "{s}.gc", "minor collection freed {x} objects in {k2}ms"),
    ("INFO", "{s}.metrics", "flushed {m} points to {h}-{k}"),
    ("INFO", "{s}.auth", "service token refreshed, valid for {q} minutes"),
    ("DEBUG", "{s}.plan", "{o} plan chosen: index scan, estimated rows={m}"),
    ("INFO", "{s}.storage", "wrote {o}-{m}.part ({x} bytes, crc ok)"),
    ("WARN", "{s}.queue", "depth {m} above soft limit, slowing producers"),
    ("INFO", "{s}.queue", "depth {k} back to normal"),
    ("DEBUG", "{s}.trace", "span {v}.{o} closed after {q}ms"),
    ("INFO", "{s}.test", "test_{v}_{o}_{k} ... ok ({k2}ms)"),
    ("INFO", "{s}.test", "test_{v}_empty_{o} ... ok ({k2}ms)"),
]


def _slots(rng, text):
    for key, make in (("{s}", lambda: rng.pick(_SERVICES)), ("{v}", lambda: rng.pick(_VERBS)),
                      ("{o}", lambda: rng.pick(_NOUNS)), ("{h}", lambda: rng.pick(_HOSTS)),
                      ("{k}", lambda: str(rng.between(1, 12))), ("{k2}", lambda: str(rng.between(1, 40))),
                      ("{m}", lambda: str(rng.between(13, 4096))), ("{q}", lambda: str(rng.between(3, 880))),
                      ("{x}", lambda: str(rng.between(901, 64000))), ("{r}", lambda: str(rng.between(71, 99)))):
        while key in text:
            text = text.replace(key, make(), 1)
    return text


def _log_chunks(rng):
    seconds = rng.below(50000)
    while True:
        seconds += rng.below(4)
        level, logger, message = rng.pick(_LOG_LINES)
        stamp = "[%9d.%03d]" % (seconds, rng.below(1000))      # uptime: no clock times that look like facts
        yield "%s %-5s %-22s %s\n" % (stamp, level, _slots(rng, logger), _slots(rng, message))


def _json_chunks(rng):
    yield '{"items": [\n'
    number = rng.between(1000, 9000)
    while True:
        number += rng.between(1, 9)
        yield ('  {"id": "%s-%d", "service": "%s", "host": "%s-%d", "state": "%s", "duration_ms": %d, "attempts": %d, '
               '"labels": {"kind": "%s", "shard": %d}, "checksum": "%08x"},\n'
               % (rng.pick(_NOUNS), number, rng.pick(_SERVICES), rng.pick(_HOSTS), rng.between(1, 9),
                  rng.pick(["done", "done", "done", "queued", "skipped", "running"]), rng.between(2, 900),
                  rng.between(1, 3), rng.pick(_VERBS), rng.between(0, 31), rng.next() & 0xFFFFFFFF))


def _code_chunks(rng):
    yield "from __future__ import annotations\n\nimport itertools\nimport logging\n\nlog = logging.getLogger(__name__)\n\n\n"
    while True:
        v, o, o2, s = rng.pick(_VERBS), rng.pick(_NOUNS), rng.pick(_NOUNS), rng.pick(_SERVICES)
        limit = rng.between(2, 64)
        kind = rng.below(5)
        if kind == 0:
            yield ("def {v}_{o}(items, limit={n}):\n    \"\"\"{V} the first {o}s of the {s} service.\"\"\"\n"
                   "    result = []\n    for item in itertools.islice(items, limit):\n"
                   "        if item.{o2} is None:\n            continue\n        result.append(item.{o2})\n"
                   "    return result\n\n\n").format(v=v, V=v.capitalize(), o=o, o2=o2, s=s, n=limit)
        elif kind == 1:
            yield ("class {O}{V}r:\n    def __init__(self, {s}, size={n}):\n        self.{s} = {s}\n"
                   "        self.size = size\n        self.pending = []\n\n    def {v}(self, {o2}):\n"
                   "        self.pending.append({o2})\n        if len(self.pending) >= self.size:\n"
                   "            self.flush()\n\n    def flush(self):\n        self.{s}.send(self.pending)\n"
                   "        self.pending = []\n\n\n").format(O=o.capitalize(), V=v.capitalize(), v=v, o2=o2, s=s, n=limit)
        elif kind == 2:
            yield ("def test_{v}_{o}_keeps_order():\n    source = [make_{o}(i) for i in range({n})]\n"
                   "    out = {v}_{o}(source)\n    assert [x.{o2} for x in out] == sorted(x.{o2} for x in out)\n\n\n"
                   ).format(v=v, o=o, o2=o2, n=limit)
        elif kind == 3:
            yield ("def {v}_{o}_by_{o2}(rows):\n    groups = {{}}\n    for row in rows:\n"
                   "        groups.setdefault(row[\"{o2}\"], []).append(row)\n"
                   "    log.debug(\"%d groups for {s}\", len(groups))\n    return groups\n\n\n").format(v=v, o=o, o2=o2, s=s)
        else:
            yield ("{O}_LIMIT = {n}\n\n\ndef {v}_or_none(value):\n    try:\n        return {v}_{o}(value)\n"
                   "    except ValueError as error:\n        log.warning(\"could not {v} {o2}: %s\", error)\n"
                   "        return None\n\n\n").format(O=o.upper(), n=limit, v=v, o=o, o2=o2)


_CSV_HEADS = [
    ("day,host,service,requests,errors,p50_ms,p95_ms\n", "2025-{mo}-{da},{h}-{k},{s},{x},{k2},{q},{m}\n"),
    ("sample,plate,row,column,reading,blank,flag\n", "{m},{k},{k2},{k},0.{r}{r},0.0{k},ok\n"),
    ("order_line,sku,quantity,unit_cents,warehouse\n", "{x},{o}-{m},{k},{q},{h}\n"),
    ("station,depth_cm,salinity,turbidity,instrument\n", "{h}{k},{q},{k2}.{r},{k}.{r},{o}\n"),
]


def _csv_chunks(rng):
    head, row = rng.pick(_CSV_HEADS)
    yield head
    while True:
        line = row
        line = line.replace("{mo}", "%02d" % rng.between(1, 12)).replace("{da}", "%02d" % rng.between(1, 28))
        yield _slots(rng, line)


_TOOL = {"log": _log_chunks, "json": _json_chunks, "code": _code_chunks, "csv": _csv_chunks}


def tool_output(style, size_bytes, seed):
    """Exactly `size_bytes` bytes of ASCII (the last line may be cut, as tools cut)."""
    rng = _Rng("tool_output|%s|%s" % (style, seed))
    parts, size = [], 0
    for chunk in _TOOL[style](rng):
        if size >= size_bytes:
            break
        parts.append(chunk)
        size += len(chunk)
    return "".join(parts)[:size_bytes]
