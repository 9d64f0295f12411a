"""Words of at least four letters that say nothing of what is talked about: asked for by nobody. Pure."""

from typing import Final

ENGLISH_STOP_WORDS: Final = """
about above actually after again against almost alone along already also although always among another anybody
anyone anything anyway aren around away back because been before behind being below best better between both bring
came cannot check come comes coming could couldn days didn different does doesn doing done down during each either
else enough even ever every everybody everyone everything exactly first found from further gave getting give given
gives goes going gone good great hadn half hasn have haven having hello help hence here hers herself himself just
keep kind knew know known last later least less like little long look looking looks made make makes making many
maybe mean means might mine more most much must myself need needs neither never next nice nobody none nothing okay
once only onto other others otherwise ours ourselves over part people perhaps please point possible pretty probably
quite rather really right said same says seem seems seen several shall should shouldn show simply since some
somebody someone something sometimes soon still stuff such sure take taken tell than thank thanks that their theirs
them themselves then there these they thing things think this those though thought through time today together told
tomorrow under until upon used using very want wants wasn well went were weren what whatever when where whether
which while whole whom whose will with within without work would wouldn yeah years yesterday your yours yourself
"""

GERMAN_STOP_WORDS: Final = """
aber alle allem allen aller alles also andere anderen anders auch beide beim bereits bitte dabei damit danke dann
darf darum dass dazu deine deinem deinen denn deren deshalb dessen diese diesem diesen dieser dieses doch dort durch
eben eigentlich eine einem einen einer eines einfach einmal etwas euch euer eure falls fast ganz gegen genau gerade
gern gibt gleich habe haben hallo hast hatte hatten hier hinter ihnen ihre ihrem ihren ihrer immer jede jedem jeden
jeder jetzt kann kannst kein keine keinem keinen keiner können könnte machen macht mehr mein meine meinem meinen
meiner muss möchte müssen nach neben nicht nichts noch oder ohne schon sehr sein seine seinem seinen seiner selbst
sich sind sollte sonst unser unsere unter viel viele vielleicht wann waren warum weil welche welchem welchen welcher
wenig wenn werde werden wieder will wird wirklich wissen wohl wollen wurde wurden würde zwar zwischen über
"""

FRENCH_STOP_WORDS: Final = """
aussi autre autres avait avant avec avez avoir avons beaucoup bien bonjour cela celle celles celui cependant ceux
chaque chez comme comment contre dans depuis deux dire dois doit donc dont déjà elle elles encore entre faire fait
faut fois jamais jusque leur leurs lors lorsque mais merci mieux moins même mêmes notre nous parce parfois pendant
peut peux plus plutôt pour pourquoi pouvez quand quel quelle quelles quelque quelques quels quoi rien sans sera
serait seulement sinon soit sont sous suis sujet tous tout toute toutes trop très vers voici voilà votre vous
vraiment étaient était êtes être
"""

SPANISH_STOP_WORDS: Final = """
ahora algo alguna algunas alguno algunos algún antes aquel aquella aquí aunque bien bueno cada casi como contra cual
cuando cuanto cuál cuándo cómo decir desde después donde durante dónde ella ellas ellos entonces entre eran eres
esas esos esta estaba estar estas este esto estos estoy está están fueron gracias había hace hacer hacia hasta hola
luego mejor menos mientras misma mismo mucha mucho muchos nada nadie nosotros nuestra nuestro nunca otra otras otro
otros para pero poco podría porque puede puedo pues quien quiere quiero quién siempre sino sobre solo sólo también
tampoco tanto tengo tiene tienen toda todas todavía todo todos usted ustedes vamos
"""

RUSSIAN_STOP_WORDS: Final = """
благодаря более больше будет будто буду была были было быть вами ваша ваше ваши весь вместо вообще вопрос время
всегда всего всем всех вчера давай даже должен другие другой если есть завтра здесь знаю именно иногда каждый какая
какие какой когда конечно которая которого которое которой которые который куда либо лучше меня мной может можно
надо наконец наша наше наши него некоторые нельзя несколько нечего никогда ничего нужно однако опять очень перед
пожалуйста пока после потом потому почему почти привет просто разве себе себя сегодня сейчас сказал сказать снова
собой совсем спасибо такая также такие такой тебе тебя теперь тоже только тысяч хорошо хотя хочу чего через чтобы
чуть этим этих этого этой этом этот
"""  # noqa: RUF001 - another alphabet

STOP_WORDS: Final = frozenset(
    f"{ENGLISH_STOP_WORDS} {GERMAN_STOP_WORDS} {FRENCH_STOP_WORDS} {SPANISH_STOP_WORDS} {RUSSIAN_STOP_WORDS}".split()
)
