"""Lists of words: tools, places, languages, professions, businesses, and words that are no names."""

from __future__ import annotations

from typing import Final

TECH: Final = """
linux windows mac macos vim emacs neovim python rust java golang javascript typescript react vue angular svelte
postgres postgresql sqlite mysql kubernetes docker aws azure gcp slack notion jira github gitlab bitbucket vscode go
c# c++ ruby php swift kotlin scala haskell elixir clojure perl r julia matlab cobol fortran lua zig duckdb arch debian
ubuntu fedora nixos chrome firefox safari android ios iphone spotify netflix production staging prod dev master main
macbook pc chromebook ipad pixel
"""
PLACES: Final = """
amsterdam athens auckland baltimore bangalore bangkok barcelona basel beijing beirut belfast belgrade berlin bern
bilbao birmingham bogota bologna bordeaux boston bratislava bremen brighton brisbane bristol brooklyn brussels
bucharest budapest cairo calgary cambridge canberra cardiff chicago cologne copenhagen cork dallas delhi denver
detroit dresden dubai dublin edinburgh eindhoven florence frankfurt galway gdansk geneva genoa ghent glasgow
gothenburg granada graz hamburg hanoi hannover havana helsinki houston istanbul izmir jakarta jerusalem johannesburg
karachi kiev krakow kuala-lumpur kyiv kyoto lagos leeds leipzig lima lisbon liverpool ljubljana london lyon madrid
malaga manchester manila marseille melbourne miami milan minneapolis minsk montreal moscow mumbai munich nairobi
naples nashville nice nottingham nuremberg osaka oslo ottawa oxford palermo paris perth philadelphia phoenix
pittsburgh porto portland prague quebec reykjavik riga rome rotterdam salzburg santiago sarajevo seattle seoul seville
shanghai sheffield singapore sofia stockholm stuttgart sydney taipei tallinn tbilisi tehran tokyo toronto toulouse
trieste tunis turin utrecht valencia vancouver venice vienna vilnius warsaw wellington wroclaw york yorkshire zagreb
zaragoza zurich aarhus aberdeen accra adelaide albuquerque aleppo algiers almaty amman ankara antwerp asheville astana
atlanta austin azores baku bali bamako bath bergen bonn bolzano boise brasov braga bruges brno bremerhaven burgos busan
cadiz calcutta canterbury casablanca catania charlotte chennai chiang-mai cincinnati cleveland cluj coimbra colombo
columbus constanta cordoba curitiba dakar damascus darwin derby derry dhaka doha dortmund dundee durban durham
dusseldorf essen exeter faro fortaleza freiburg fukuoka gdynia ghent giza goa groningen guadalajara guangzhou haarlem
haifa halifax hobart honolulu hyderabad ibadan incheon inverness islamabad jaipur jena kampala kathmandu katowice
kaunas kharkiv kigali killarney kingston kobe kolkata konya kuwait lahore lausanne leicester leiden leuven lille
limerick limassol linz lodz lublin luanda lucerne lviv macau maastricht malmö malmo maputo marrakesh medellin memphis
modena montevideo monterrey mysore mysuru nagoya nantes newcastle nijmegen nicosia norwich odense odesa omaha oradea
orlando padua pamplona parma patras pecs penang perugia pisa plovdiv plymouth poznan pretoria preston pune quito
raleigh ravenna reading recife rennes richmond rijeka rosario sacramento salamanca salvador sapporo savannah sibiu
skopje southampton split sunderland surabaya swansea tampa tampere tartu tbilisi thessaloniki tirana tijuana toledo
trondheim tucson turku uppsala utrecht valletta varna verona vigo waterford windhoek winnipeg wolverhampton worcester
yerevan wrocław kraków gdańsk łódź poznań málaga zürich münchen köln düsseldorf göteborg århus bogotá medellín
argentina australia austria belgium brazil bulgaria canada chile china colombia croatia cyprus denmark
egypt england estonia finland france germany ghana greece hungary iceland india indonesia iran ireland israel italy
jamaica japan kenya latvia lebanon lithuania luxembourg malaysia malta mexico morocco nepal netherlands nigeria norway
pakistan peru poland portugal romania scotland serbia slovakia slovenia spain sweden switzerland taiwan thailand
tunisia turkey ukraine uruguay vietnam wales alabama alaska arizona california colorado florida georgia hawaii idaho
illinois iowa kansas kentucky louisiana maine maryland massachusetts michigan minnesota mississippi missouri montana
nebraska nevada ohio oklahoma oregon pennsylvania tennessee texas utah vermont virginia wisconsin wyoming
"""
LONG_PLACES: Final = """
new york|new orleans|san antonio|salt lake city|kansas city|kuala lumpur|addis ababa|los angeles|
san francisco|las vegas|hong kong|cape town|tel aviv|new zealand|south africa|the netherlands|
the uk|the us|the usa|uk|usa|nyc|la|sf|mexico city|buenos aires|new jersey|san diego|the hague|rio|sao paulo
"""
LANGUAGES: Final = """
afrikaans albanian amharic arabic armenian basque bengali bosnian bulgarian burmese cantonese catalan chinese croatian
czech danish dutch english esperanto estonian farsi filipino finnish flemish french galician georgian german greek
gujarati hausa hebrew hindi hungarian icelandic igbo indonesian irish italian japanese kannada kazakh khmer korean
kurdish lao latin latvian lithuanian luxembourgish macedonian malay malayalam maltese mandarin marathi mongolian
nepali norwegian pashto persian polish portuguese punjabi quechua romanian russian serbian slovak slovene slovenian
somali spanish swahili swedish tagalog tamil telugu thai tibetan turkish ukrainian urdu uzbek vietnamese welsh xhosa
yiddish yoruba zulu asl bsl
"""
PROFESSIONS: Final = """
accountant actor actress actuary analyst anesthesiologist animator anthropologist archaeologist architect archivist
artist astronomer attorney auditor author baker banker barber barista bartender biochemist biologist blogger
bookkeeper botanist broker builder butcher carpenter cashier chef chemist chiropractor choreographer cleaner coach
composer conductor consultant contractor cook copywriter counselor counsellor curator dancer dentist dermatologist
designer detective developer dietitian director doctor driver economist editor educator electrician engineer
entrepreneur epidemiologist farmer filmmaker firefighter fisherman florist founder freelancer gardener geologist
geneticist goldsmith hairdresser handyman historian illustrator instructor interpreter janitor jeweler journalist
judge lawyer lecturer librarian lifeguard linguist locksmith machinist manager marketer mason mathematician mechanic
midwife miner model musician nanny neurologist neuroscientist nurse nutritionist optician optometrist painter
paralegal paramedic pathologist pediatrician pharmacist philosopher photographer physician physicist physiotherapist
pianist pilot planner plumber poet policeman policewoman politician postdoc potter principal producer professor
programmer psychiatrist psychologist psychotherapist radiologist ranger realtor receptionist recruiter researcher
sailor salesman salesperson saleswoman scientist sculptor secretary security singer social-worker sociologist soldier
statistician stylist student surgeon surveyor tailor teacher technician therapist trader trainer translator tutor
underwriter undertaker veterinarian vet videographer violinist waiter waitress welder writer zookeeper zoologist
sommelier foreman forewoman roofer carer caregiver solicitor barrister bricklayer seamstress dressmaker scaffolder
stonemason upholsterer glazier phlebotomist hygienist landscaper trucker steward stewardess attendant dj bassist
drummer guitarist cellist luthier ceramicist cartoonist playwright screenwriter novelist columnist reporter
proofreader publicist buyer merchandiser clerk notary diplomat councillor warden guard sergeant lieutenant captain
paratrooper medic childminder headteacher docent guide referee jockey athlete footballer fishmonger grocer
confectioner chocolatier cheesemaker bouncer dishwasher housekeeper concierge porter valet postman mailman toolmaker
fitter plasterer tiler decorator joiner cabinetmaker blacksmith farrier saddler cobbler milliner weaver hairstylist
beautician tattooist masseuse masseur physio osteopath acupuncturist homeopath doula tester freelance lorry-driver
controller treasurer cartographer homemaker housewife househusband signalman stockman shepherd crofter rigger diver
deckhand skipper dispatcher bookbinder bookseller shopkeeper publican innkeeper caterer dietician audiologist
orthodontist chiropodist podiatrist anaesthetist undergraduate postgraduate phd apprentice trainee roadie stagehand
gaffer editor-in-chief worker officer intern apprentice assistant administrator sysadmin devops pastor priest rabbi
imam nun monk beekeeper brewer winemaker butler chauffeur courier dispatcher estimator inspector investigator operator
supervisor superintendent specialist strategist stockbroker cto ceo cfo coo vp
"""
NOT_NAMES: Final = """
sorry sure fine good great okay ok well glad happy sad tired busy back here there home ready done late early new not
just still also very really so too all both only now then the a an your my his her their our this that it he she they
we you i me him them us american british english german french italian spanish portuguese dutch swedish danish
norwegian finnish polish czech russian ukrainian chinese japanese korean indian mexican canadian australian brazilian
greek turkish irish scottish welsh european asian african muslim christian jewish catholic buddhist hindu atheist
vegan vegetarian trying looking going working thinking using getting having feeling doing making planning hoping
wondering writing reading learning building running studying living male female single married divorced engaged
pregnant sick ill hungry thirsty bored excited confused stuck lost interested curious afraid worried nervous monday
tuesday wednesday thursday friday saturday sunday aware able about at in on from with for off out up down over under
always never sometimes often usually currently quite pretty fully almost nearly what who how why when where which
actually no yes maybe allergic older younger retired unemployed self-employed bilingual fluent coming leaving moving
online offline free open closed available unavailable more less better worse best diabetic based originally used dead
alive asking calling serious kidding joking right wrong true false pm am nobody somebody everyone anyone someone
impressed surprised amazed grateful thankful later tomorrow soon asap crazy whatever anything again stupid paranoid
lazy picky weird dumb upon dr mr mrs ms prof sir madam doctor
"""
CHARACTERS: Final = """
antman aquaman batgirl batman bugsbunny captainamerica catwoman chewbacca cinderella darthvader deadpool donaldduck
dracula dumbledore frankenstein frodo gandalf god godzilla groot gollum harrypotter hermione homersimpson hulk
ironman jamesbond joker kingkong lordvoldemort lucifer lukeskywalker mickeymouse napoleon peterpan pikachu pinocchio
popeye rambo robinhood robocop rumpelstiltskin santa santaclaus satan sherlock sherlockholmes shrek snowwhite spiderman
supergirl superman supermario superwoman tarzan terminator thanos vader voldemort wolverine wonderwoman yoda zorro
"""
"""Names that people give themselves in jest, without spaces and hyphens."""
BUSINESSES: Final = """
agency bakery bar barbershop bookshop bookstore brewery butchery cafe café catering clinic company consultancy creamery
diner farm firm florist garage gym hostel hotel laundromat nursery pizzeria practice pub restaurant roastery salon
school shop startup store studio trattoria vineyard winery workshop
"""
