r"""Decide whether a response asserts the answer that it gives.

The sentence of the answer must neither ask, deny, suppose nor doubt it: "It is not 5", "Suppose it
is 5", "5?", "5, but that is wrong". Later sentences can take it back ("No.", "Wait, that is
wrong.", "I do not know.") and confirm it again ("Yes, it is correct."). A later sentence about
something else changes nothing: "6 is impossible", "No other solutions exist."
"""

from __future__ import annotations

import re

from rlobj.answers.sentences import plain, split_sentences

_BEFORE = 300
_SENTENCE = 400
"""How much of the text before an answer, and of a later sentence, is read, in characters."""


def _any(*phrases: str) -> str:
    """Pattern of one of the phrases, which are separated by commas."""
    each = [phrase.strip() for text in phrases for phrase in text.split(",")]
    return f"(?:{'|'.join(filter(None, each))})"


# Words that may stand between "not" and the answer: "not true that the answer is 5".
_LIGHT = (
    _any(
        r"the, an?, is, are, be, was, were, been, being, equals?, to, as, that, this, it, "
        r"answers?, i, final, value, result, solution, number, correct, right, true, case, we, "
        r"you, can, could, of, would, will, does, do, have, get, gives?, says?, claims?, thinks?, "
        r"believes?, write, answer, obtain, conclude, put, \w+ly, going, supposed, at all, in "
        r"fact, any of, no longer,,  exactly, simply, really, actually, just, its, our, my, look, "
        r"root, like, now, for the sake of argument, for the sake of contradiction, for "
        r"contradiction"
    )
    + r"\b"
)
_DENYING = (
    r"\b(?:"
    + _any(
        r"not, \w+n't, never, cannot, neither, nobody, no one, no way, by no means, nowhere near, "
        r"under no circumstances, anything but, anything except, (?<!none )(?<!nothing )other "
        r"than, different from, rather than, instead of, except, far from, wrong, incorrect, "
        r"false, refuse, impossible, doubt, deny, unlikely, unless, if, whether, suppose, "
        r"supposing, assume, assuming, imagine, pretend, hypothesi[sz]e, hypothetically, let, "
        r"perhaps, maybe, possibly, guess(?:ed|ing)?, rule out, exclude, reject, discard, wonder, "
        r"try, mistake, error, trap, tempting, e\.g\., for example, for instance, such as, "
        r"format(?!:), template, placeholder, (?<!no )(?<!not )(?:less|greater|more|larger"
        r"|smaller|bigger|higher|lower) than, close to, twice, half, double, untrue, refute, "
        r"dismiss, differs? from, unequal to, hardly, roughly, around, fails? to be, anything "
        r"else than, one of, rejected, extraneous, with your answer, (?:negative|square|cube|root"
        r"|reciprocal|opposite) of, (?<!look )(?<!looks )like, (?<!least )upper bound, "
        r"(?<!greatest )lower bound",
        "(?:someone|somebody|students?(?: \\w)?|solver|people|fool|many|others?|he|she|they)(?: "
        "might| may| would| could| will)? (?:say|claim|write|think|answer|guess)s?",
    )
    + r"|\A(?:let's |let us )?say|no es|ist nicht|nicht|n'est pas|não é|non è)|不是|并非|не "
)
_UNSURE = (
    r"(?:(?:i am|i'm|we are) (?:still |really |also )*(?:not |un)(?:[\w%]+ )??"
    r"(?:sure|certain|confident|convinced)|not (?:[\w%]+ ){0,2}(?:sure|certain|confident)"
    r"|i (?:really |actually )?(?:do not|don't)(?: really| actually)? know|i have no (?:idea|clue)"
    r"|i(?:'m| am) (?:just |only |simply )?guessing)\b"
)
_UNSURE_HERE = re.compile(_UNSURE)
_DENIED_BEFORE = re.compile(
    rf"(?:(?:{_DENYING})(?: ?{_LIGHT}| ?[a-z] ?=| =)*+|\beither\b.*\bor(?: {_LIGHT})*+"
    rf"|\b(?:could|might|may)(?: well| also| possibly)?(?: be| say| think| write| argue)?"
    r"|\\(?:neq?|not ?=?)|≠|!=)[ (:]*\Z"
)
_STOP = (
    r"(?= ?(?:[.,;:!?)(…—–-]|\Z|(?:because|since|as|by|here|either|at all|too|and|after all"
    r"|though|anyway|now|again|instead)\b))"
)
_BE = (
    r"(?:(?:is|are|was|were|be|seems?|seemed|looks?|looked|feels?|sounds?|appears?|must|may|might"
    r"|can|could|would|should|will|have|has|had|do|does|did|been|being|to|it|we|get|gives?|\w+ly"
    r"|still|also|just|almost|most|very|indeed|in fact|of course|now|then|a bit|bit|rather|quite"
    r"|so|all|even) )*+"
)
_NOT = (
    r"(?:(?:not|never|no longer|cannot|\w+n't)(?: \w+ly| quite| seem| look| be| sound| to be"
    r"| make|(?: (?:the|an?|our|my|final|actual|good)\b)++)*+)"
)
_FAULTS = (
    rf"{_BE}(?:{_NOT}(?: "
    + _any(
        "answer, solution, correct, right, valid, true, possible, so, plausible, acceptable",
        "consistent, what was asked, what is asked, what we (?:want|need), the case",
    )
    + rf"(?: (?:answer|solution|one))?|){_STOP}|{_NOT} "
    + _any("work, satisfy, fit, hold, sense, match, check out, add up, agree, fulfil")
    + r"\b|(?:an? )?(?:\w+ (?=mistake|error|guess))?"
    + _any(
        "wrong, incorrect, false, impossible, invalid, absurd, nonsense, mistaken, flawed, off, "
        "erroneous, contradictory, inconsistent, unlikely, suspicious, questionable, doubtful, "
        "untrue, mistake, error, typo, contradiction, guess, too small, too large, too big, too "
        "low, too high, (?:my|the|our) (?:first|initial|previous|old) (?:attempt|guess|try"
        "|answer), what (?:an?|some|many), rejected, discarded, excluded, ruled out, withdrawn, "
        "lower bound, upper bound"
    )
    + rf"\b{_STOP}|(?:fails?|violates?|contradicts?)\b|makes? no sense\b"
    r"|(?:leads?|gives?)(?: to)? a contradiction)"
)
_COUNTERFACTUAL = re.compile(
    r"\b(?:if|had|were|without|unless|otherwise|ignoring|assuming|supposing)\b.*\b(?:would|'d)\b"
    r"|\bwould(?: have|'ve) \w+\b|\bif\b.*\b(?:were|had)\b"
)
_CONDITION = re.compile(r"\b(?:if|had|were|without|unless|provided|assuming)\b")
_DENIED_AFTER = re.compile(
    r"[ ,;:(\[.'\"”—–…-]*+(?:"
    + _any(
        "but, and, though, although, while, yet, however, or, which, that, this, it, they, i think",
        "i believe, oh, wait, hmm, that's, it's, which's",
    )
    + rf"\b[ ,]++)*+(?:{_FAULTS}|{_UNSURE}|(?:no|nope)\b{_STOP}|(?:maybe|perhaps|possibly|unless)\b"
    r"|for the sake of argument|(?<=or )(?:so|something|thereabouts)(?= ?[.,;!)]| ?\Z)\b|give or "
    r"take|would have been\b|(?:would|might|may|could) be (?:the |our |my )?(?:answer|result"
    r"|value|case|right|correct) if\b|i guessed|(?:just|only|merely) an? (?:\w+ )?guess|if (?:i"
    r"|my|that|this)\b|(?:could|might|may) (?:also |well )?be [-\d\\])"
)
_MARKER = re.compile(
    "(?:"
    + _any(
        "but, wait, hmm+, hm, oh, oops, hold on, actually, no, nope, sorry, however, so, well, "
        "and, alas, unfortunately, in fact, then, thus, yet, or, hence, therefore, on second "
        "thoughts?, correction, ah, edit, update, apologies, my bad, okay, ok, i think, i "
        "believe, now, maybe, perhaps, because, note that, clearly, obviously, u?p?on reflection, "
        "honestly, frankly, sadly, to be honest, never ?mind, rather"
    )
    + r"\b[ ,.!:;…—–-]*+)++"
)
_CONCLUDING = re.compile(r"(?:so|hence|thus|therefore|note)\b")
_NO = re.compile(r"\b(?:no|nope|oops|never ?mind)\b")
_ALONE = re.compile(
    _any(
        "nope, no, wrong, incorrect, false, contradiction, impossible, never ?mind, scratch that, "
        "oops, absurd, nonsense, not (?:quite|really|correct|right|true|possible|so|the answer), "
        "(?:that|this|it) (?:isn't|wasn't|is not|was not), (?:just|only) kidding, (?:we )?(?:have"
        "|reach|get|obtain|arrive at|found|find) a contradiction, (?:there (?:is|are) )?no "
        "(?:answer|solution)s?(?: exists?)?, not, i (?:do not|don't) (?:think|believe) (?:so|it"
        "|this|that), i (?:could|may|might) (?:well )?be (?:wrong|mistaken), "
        "(?:这|那)?(?:不对|错了?|错误|不正确|不是), (?:das )?(?:ist )?falsch, das stimmt nicht, "
        "(?:es )?incorrecto, no es "
        "correcto, (?:c'est )?faux, неверно"
    )
    + r"[ .!,:;…—–-]*"
)
_NOUN = "(?:answer|result|solution|value|conclusion|number|claim|reasoning|calculation|argument)"
_FAULTY_NEAR = re.compile(
    rf"(?:(?:this|that|the)(?: above)? {_NOUN}(?: above| i gave| in the box)?|the above"
    rf"|this|that|it|they|which|these)(?:'s)? {_FAULTS}"
)
_FAULTY = re.compile(
    r"(?:the |my |our |this |that |both )?(?:final |above |boxed |previous |given |last )*answers?"
    rf"(?: above| i gave| in the box)? {_FAULTS}"
)
_DOUBTED = re.compile(
    r"i (?:don't|do not) (?:think|believe) (?:that )?(?:this|that|it)(?: answer| value| result)? "
    rf"(?:is|can be|could be) (?:correct|right|true|the answer|possible|valid)\b{_STOP}"
)
_FAULT = re.compile(_FAULTS)
_HEDGED = re.compile(r"(?:it|the answer) (?:could|might|may) (?:also |well )?be [-\d\\]")
_IT = r"(?:this|that|it|these|my|the (?:final |boxed )?(?:above|box|answer|previous))\b"
_ERROR = r"(?:an?|some) (?:\w+ )?(?:mistake|error)"
_GIVING_UP = re.compile(
    rf"{_UNSURE}(?=[ ,.!;]*\Z|,| (?:(?:about|of|in|that|if|whether) )?(?:{_IT}|how to|here"
    rf"|the rest))"
    r"|(?:(?:this|that|it)(?: is| was|'s) )?(?:just |only |merely |purely |simply )*(?:an?|my) "
    r"(?:\w+ )?guess\b|i give up|i no longer (?:believe|trust)|i (?:do not|don't) have an answer"
    rf"|(?:please )?(?:ignore|disregard|discard|forget|strike|cancel|delete|do not count) {_IT}"
    r"|i (?:cannot|can't|could not|couldn't|am unable to|was unable to|failed to) "
    r"(?:determine|solve|find|answer|compute|finish|be sure|decide)\b"
    rf"|i (?:retract|withdraw|take {_IT}(?: answer)? back|(?:just |only )?guess(?:ed|ing)\b"
    r"|(?:double[ -]?|over|under|mis)-?counted|mixed up|swapped|dropped|misread|miscalculated"
    r"|messed up)"
    rf"|i (?:must have |have |may have |think i |probably )?(?:made|make|see) {_ERROR}"
    rf"|there (?:is|was|must be) {_ERROR}|i (?:forgot|missed|overlooked) (?!to\b)"
    r"|(?:the )?(?:true |correct |real )?answer (?:cannot|can't|could not) be (?:determined|found)"
)
_MATH = r"((?=-? ?[\d\\])(?:\\[a-z]+|[^a-z\\]|(?<![a-z])[a-z](?![a-z]))+?)"
_OTHER = re.compile(
    r"(?:it|that|this|i meant?|make that|the (?:correct |right |true |real |final )?answer)? ?"
    r"(?:is|'s|should be|should have been|must be|would be|=|:)? ?(?:actually |maybe |rather )?"
    rf"{_MATH}(?: instead| is (?:correct|right|the answer))?[ .!]*"
)
_INSTEAD = re.compile(r"i mean|it should|or\b|make that|the (?:correct|right|true|real) answer")
_REPLACING = re.compile(
    r"\b(?:instead|replaced?|should (?:be|read|have been) (?=[-\d\\])|meant|correct(?:ed|ing|ion)"
    r"|re-?check(?:ed|ing)?|re-?count(?:ed|ing)?|re-?do(?:ne|ing)?|re-?comput(?:ed|ing|e)|revised?"
    r"|updat(?:ed|ing)|now (?:get|find|obtain)|better)\b"
)
_LATER = re.compile(
    r"(?:(?:so|thus|hence|therefore)[ ,]+)(?:(?:the |our |my )?(?:final |correct )?answer(?: is| "
    r"must be| should be)?[ :=]*(-?[0-9]+)|(-?[0-9]+) is the (?:final )?answer)(?![.,/]?[0-9])"
    r"|(?:the )?(?:final answer|true value|true answer)(?: is|:)[ :=]*(-?[0-9]+)(?=[ .,!]|\Z)"
)
_VALUE = re.compile(r"-?[0-9](?:[0-9./,]*[0-9])?")
_ELSEWHERE = re.compile(r"\d|\\|[a-z] ?=|\b(?:if|suppose|assume|otherwise|case)\b")
_CONFIRMED = re.compile(
    r"(?:yes|indeed|confirmed)\b|.*\b(?:(?:answer|this|that|it|which|everything|result)(?:'s)? "
    r"(?:(?:is|was|seems|looks|indeed|still|in fact|actually|really|all) )*+(?:correct|right|fine"
    r"|confirmed|verified|consistent|ok|okay|good|works|stands|holds|checks out)|so yes)\b"
)
_CLAUSES = re.compile(
    r"(?:,| [—–-]+|\.\.\.|…|;)\s+(?=(?:so|hence|thus|therefore|but|and|it|this|that|which)\b)|;\s"
)
_ANYTHING = re.compile(r"[^\W_]|[?？]")
_STRUCK = re.compile(r"(?<!~)~~(?!~)")
_OPERATOR = r"(?:[-+*/^]|\\(?:cdot|times|div|pm)(?![a-z]))"
_BESIDE_AFTER = re.compile(
    rf"(?:{_OPERATOR}(?! )|\s*(?:[+*/]|\\(?:cdot|times|div|pm)(?![a-z]))\s*)(?!\{{?\\circ|-)"
    r"(?:[0-9({]|[a-z](?![a-z])|\\(?:frac|sqrt|pi)\b)|[a-z](?![a-zA-Z])(?=[$ .^+]|\Z)|\\(?:pi"
    r"|sqrt|frac)(?![a-zA-Z])"
)
_BESIDE_BEFORE = re.compile(
    rf"(?:{_OPERATOR}|(?<![=\s$&])[0-9])\s*\Z|(?<=[=(${{])\s*-\s*\Z|[0-9]\Z"
)
_OR_NUMBER = re.compile(r"[ ,;.(\[—–-]*or (?:maybe )?(-?[0-9]+)(?=[ ,.;!)\]]|\Z)(?! ?[a-z])")
_EQUALS_NUMBER = re.compile(r"[\s{}]*= ?(-?[0-9]+)[\s.!]*\Z")
_HIDDEN = (("<!--", "-->"), (r"\iffalse", r"\fi"), (r"\begin{comment}", r"\end{comment}"))
_STRUCK_BEFORE = re.compile(
    r"(?:\\[hv]?phantom\s*\{|\\(?:text)?color\s*\{white\}|\\verb\W|\\(?:newcommand"
    r"|def)\s*\{?\\\w+\}?\s*\{|\\(?:[bx]?cancel|sout|st)\s*\{|<(?:del|s|strike)>)[\s${(\\]*\Z"
)


def asserted(before: str, answer: str, after: str) -> bool:
    """Return whether a response asserts an answer.

    Args:
        before: the text before the answer.
        answer: the answer.
        after: the text after the answer.

    Example:
        >>> asserted("It is ", "5", "."), asserted("It is not ", "5", ".")
        (True, False)
        >>> asserted("It is ", "5", ". Wait, that is wrong."), asserted("", "5", ". So 6 is wrong.")
        (False, True)
    """
    return _visible(before, after) and _claimed(before, answer, after)


def _visible(before: str, after: str) -> bool:
    """Return whether an answer is neither struck through, hidden nor part of a larger formula."""
    if ("~~" in before and len(_STRUCK.findall(before)) % 2) or _STRUCK_BEFORE.search(
        before[-_BEFORE:]
    ):
        return False
    if any(before.rfind(start) > before.rfind(end) for start, end in _HIDDEN):
        return False
    beside = _in_math(before) and _BESIDE_BEFORE.search(before[-40:])
    return not beside and not _BESIDE_AFTER.match(after)


def _claimed(before: str, answer: str, after: str) -> bool:
    """Return whether the words around an answer assert it."""
    clause = _words([part for part, _ in split_sentences(before[-_BEFORE:])][-1])
    if (
        _DENIED_BEFORE.search(clause)
        or _UNSURE_HERE.match(clause)
        or _COUNTERFACTUAL.search(clause)
    ):
        return False
    if not _ANYTHING.search(after):
        return True
    later = split_sentences(after)
    rest, mark = next(later)
    first, *others = _CLAUSES.split(_words(rest[:_SENTENCE])) if rest.strip() else [""]
    if "?" in mark or "？" in mark or rest.rstrip().endswith("?") or _DENIED_AFTER.match(first):
        return False
    if clause.endswith(("would be", "would give", "would get")) and _CONDITION.search(first):
        return False
    other = _OR_NUMBER.match(first) or _EQUALS_NUMBER.match(first)
    if other and answer.isdecimal() and other[1] != answer:
        return False
    for each, mark in later:
        if "?" not in mark:
            others += _CLAUSES.split(_words(each[:_SENTENCE]))
    return _stands(answer, others)


def _in_math(before: str) -> bool:
    """Return whether the text after `before` is inside math delimiters."""
    paragraph = before[max(0, before.rfind("\n\n")) :]
    pairs = ((r"\(", r"\)"), (r"\[", r"\]"))
    opened = any(paragraph.rfind(start) > paragraph.rfind(end) for start, end in pairs)
    return opened or paragraph.count("$") % 2 == 1 or paragraph.count("$$") % 2 == 1


def _words(text: str) -> str:
    """Plain text in small letters with single blanks."""
    return " ".join(plain(text).replace("’", "'").lower().split()).strip("-–—|")


def _stands(answer: str, clauses: list[str]) -> bool:
    """Return whether the clauses after an answer leave it standing.

    A bare "No." or "That is wrong." counts only near the answer, before the text turns to something
    else: in a proof after the answer, it is about another number.
    """
    stands = near = True
    subject = _words(answer[:40])
    denials = f"the answer is not {subject}", f"it is not {subject}"
    pending = ""
    for clause in clauses:
        clause = f"{pending}{clause.strip(' |:.,-')}"
        marker = _MARKER.match(clause)
        claim = clause[marker.end() :] if marker else clause
        told = marker is not None and not _CONCLUDING.match(clause)
        pending = f"{clause} " if clause and not claim else ""  # "Actually, it is 6."
        refused = _ALONE.fullmatch(clause) or _ALONE.fullmatch(claim)
        refused = refused or (not claim and _NO.search(clause))
        faulty = _FAULTY_NEAR.match(claim)
        denies = _FAULTY.match(claim) or _GIVING_UP.match(claim) or _HEDGED.match(claim)
        denies = (
            denies
            or claim in denials
            or (claim.startswith(f"{subject} ") and _FAULT.match(claim, len(subject) + 1))
        )
        if denies or _DOUBTED.match(claim) or (near and refused) or (faulty and (near or told)):
            stands = False
        elif later := _LATER.match(clause):
            stands = stands and (not answer.isdecimal() or answer in later.groups())
        elif _CONFIRMED.match(clause):
            stands = True
        elif near and (told or _INSTEAD.match(clause)) and (other := _OTHER.fullmatch(claim)):
            stands = stands and other[1].rstrip(" .,") == _words(answer)
        elif near and _REPLACING.search(clause):
            stands = stands and (_VALUE.findall(clause) or [answer])[-1] == answer
        near = near and not _ELSEWHERE.search(clause)
    return stands
