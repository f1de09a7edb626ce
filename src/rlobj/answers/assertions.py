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
    return f"(?:{'|'.join(phrase.strip() for text in phrases for phrase in text.split(','))})"


# Words that may stand between "not" and the answer: "not true that the answer is 5".
_LIGHT = _any(
    r"the\b, an?\b, is\b, are\b, be\b, was\b, were\b, been\b, being\b, equals?\b, to\b, as\b, "
    r"that\b",
    r"this\b, it\b, answers?\b, final\b, value\b, result\b, solution\b, number\b, correct\b, "
    r"right\b",
    r"true\b, case\b, we\b, i\b, you\b, can\b, could\b, would\b, will\b, does\b, do\b, have\b, "
    r"get\b",
    r"says?\b, claims?\b, thinks?\b, believes?\b, write\b, obtain\b, conclude\b, put\b, of\b, "
    r"exactly\b",
    r"simply\b, really\b, actually\b, just\b, its\b, our\b, my\b, [a-z] ?=, =",
)
_DENYING = _any(
    r"not, \w+n't, never, cannot, neither, nobody, no one, anything but, anything except",
    r"(?<!none )(?<!nothing )other than, different from, rather than, instead of, except, far from",
    "wrong, incorrect, false, impossible, doubt, deny, unlikely, unless, if, whether, suppose",
    "supposing, assume, assuming, imagine, perhaps, maybe, possibly, guess(?:ed|ing)?, rule out",
    "exclude, reject, discard, wonder, try",
)
_UNSURE = (
    r"(?:(?:i am|i'm|we are) (?:still |really |also )*(?:not |un)(?:\w+ )??"
    r"(?:sure|certain|confident|convinced)|not (?:\w+ )??(?:sure|certain|confident)"
    r"|i (?:do not|don't)(?: really| actually)? know|i have no (?:idea|clue)"
    r"|i(?:'m| am) (?:just |only |simply )?guessing)\b"
)
_DENIED_BEFORE = re.compile(
    rf"(?:\b{_DENYING}(?: {_LIGHT})*+|\b(?:could|might|may)(?: well| also| possibly)?(?: be)?"
    r"|\\(?:neq?|not ?=?)|≠|!=)[ (:]*\Z"
)
_STOP = (
    r"(?= ?(?:[.,;:!?)(…—–-]|\Z|(?:because|since|as|for|by|here|either|at all|too|and|after all"
    r"|though|anyway|now|again|in)\b))"
)
_BE = (
    r"(?:(?:is|are|was|were|be|seems?|seemed|looks?|looked|feels?|sounds?|appears?|must|may|might"
    r"|can|could|would|should|will|have|has|had|do|does|did|been|being|to|it|we|get|gives?|\w+ly"
    r"|still|also|just|indeed|in fact|of course|now|then|a bit|bit|rather|quite|so|all|even) )*+"
)
_NOT = (
    r"(?:(?:not|never|no longer|cannot|\w+n't)(?: \w+ly| quite| seem| look| be| sound| to be"
    r"| make|(?: (?:the|an?|our|my|final|actual|good)\b)++)*+)"
)
_FAULTS = (
    rf"{_BE}(?:{_NOT}(?: "
    + _any(
        "answer, solution, correct, right, valid, true, possible, so, plausible, acceptable",
        "consistent, what was asked, what is asked, the case",
    )
    + rf"(?: (?:answer|solution|one))?|){_STOP}|{_NOT} "
    + _any("work, satisfy, fit, hold, sense, match, check out, add up, agree, fulfil")
    + r"\b|(?:an? )?(?:\w+ (?=mistake|error|guess))?"
    + _any(
        "wrong, incorrect, false, impossible, invalid, absurd, nonsense, mistaken, flawed, off",
        "erroneous, contradictory, inconsistent, unlikely, suspicious, questionable, doubtful",
        "untrue, mistake, error, typo, contradiction, guess, too small, too large, too big",
        "too low, too high",
    )
    + rf"\b{_STOP}|(?:fails?|violates?|contradicts?)\b|leads? to a contradiction)"
)
_DENIED_AFTER = re.compile(
    r"[ ,;:(.—–…-]*+(?:(?:but|and|though|although|while|yet|however|or|which|that|this|it|i think"
    r"|i believe|oh|wait|hmm|that's|it's|which's)\b[ ,]++)*"
    rf"(?:{_FAULTS}|{_UNSURE}|(?:no|nope)\b{_STOP}|unless\b|i guessed|(?:just|only"
    rf"|merely) an? (?:\w+ )?guess"
    r"|if (?:i|my|that|this)\b|(?:maybe|perhaps|possibly)\b|(?:could|might|may) (?:also "
    r"|well )?be [-\d\\])"
)
_MARKER = re.compile(
    "(?:"
    + _any(
        r"but, wait, hmm+, hm, oh, oops, hold on, actually, no, nope, sorry, however, so, well, "
        r"and",
        "alas, unfortunately, in fact, then, thus, yet, or, hence, therefore, on second thought",
        "correction, ah, edit, update, apologies, my bad, okay, ok, i think, i believe, now, maybe",
        "perhaps, because, note that, clearly, obviously",
    )
    + r"\b[ ,.!:;…—–-]*+)++"
)
_CONCLUDING = re.compile(r"(?:so|hence|thus|therefore|note)\b")
_NO = re.compile(r"\b(?:no|nope|oops)\b")
_ALONE = re.compile(
    _any(
        "nope, no, wrong, incorrect, false, contradiction, impossible, never ?mind, scratch that",
        r"oops, absurd, nonsense, not (?:quite|really|correct|right|true|possible|so|the answer)",
        r"(?:that|this|it) (?:isn't|wasn't|is not|was not)",
    )
    + r"[ .!,:;…—–-]*"
)
_NOUN = "(?:answer|result|solution|value|conclusion|number|claim|reasoning|calculation|argument)"
_FAULTY_NEAR = re.compile(
    rf"(?:(?:this|that|the)(?: above)? {_NOUN}(?: above| i gave| in the box)?|this|that|it|which"
    rf"|these)"
    rf"(?:'s)? {_FAULTS}"
)
_FAULTY = re.compile(
    r"(?:the |my |our |this |that |both )?(?:final |above |boxed |previous |given |last )*answers?"
    rf"(?: above| i gave| in the box)? {_FAULTS}"
)
_IT = r"(?:this|that|it|these|my|the (?:final |boxed )?(?:above|box|answer|previous))\b"
_GIVING_UP = re.compile(
    rf"{_UNSURE}(?=[ ,.!;]*\Z|,| (?:(?:about|of|in|that|if|whether) )?(?:{_IT}|how to|here))"
    r"|(?:(?:this|that|it)(?: is| was|'s) )?(?:just |only |merely |purely |simply )*(?:an?|my) "
    r"(?:\w+ )?guess\b|(?:just|only|simply) (?:guessing|guessed)|i (?:just |only )?guessed"
    r"|i give up"
    rf"|(?:please )?(?:ignore|disregard|discard|forget|strike|cancel) {_IT}"
    r"|i (?:cannot|can't|could not|couldn't|am unable to|was unable to|failed to) "
    r"(?:determine|solve|find|answer|compute|be sure|decide)\b"
    rf"|i (?:retract|withdraw|take {_IT}(?: answer)? back|miscounted|misread|miscalculated"
    rf"|messed up)"
    r"|(?:i (?:must have |have |may have |think i |probably )?(?:made|make|see)|there (?:is|was"
    r"|must be))"
    r" (?:an?|some) (?:\w+ )?(?:mistake|error)"
    r"|(?:the )?(?:true |correct |real )?answer (?:cannot|can't|could not) be (?:determined"
    r"|found|known)"
)
_OTHER = re.compile(
    r"(?:it|that|this|i mean|i meant|make that|the (?:correct |right |true |real "
    r"|final )?answer)? ?"
    r"(?:is|'s|should be|should have been|must be|would be|=|:)? ?(?:actually |maybe |rather )?"
    r"(-?[0-9\\][^ ]*)[ .!]*"
)
_SHOULD = re.compile(r"i mean|it should|or\b")
_CONFIRMED = re.compile(
    r"(?:yes|indeed|confirmed)\b|.*\b(?:(?:answer|this|that|it|which|everything|result)(?:'s)? "
    r"(?:(?:is|was|seems|looks|indeed|still|in fact|actually|really|all) )*+(?:correct|right|fine"
    r"|confirmed|verified|consistent|ok|okay|good|works|stands|holds|checks out)|so yes)\b"
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
    clause = _words([part for part, _ in split_sentences(before[-_BEFORE:])][-1])
    if _DENIED_BEFORE.search(clause) or re.match(_UNSURE, clause):
        return False
    later = split_sentences(after)
    rest, mark = next(later)
    rest = _words(rest[:_SENTENCE])
    if "?" in mark or "？" in mark or rest.endswith("?") or _DENIED_AFTER.match(rest):
        return False
    alternative = re.fullmatch(r"[ ,;.(]*or (-?[0-9]+)[ ).!]*", rest)
    if alternative and answer.isdecimal() and alternative[1] != answer:
        return False
    return _stands(answer, [_words(each[:_SENTENCE]) for each, mark in later if "?" not in mark])


def _words(text: str) -> str:
    """Plain text in small letters with single blanks."""
    return " ".join(plain(text).replace("’", "'").lower().split()).strip("-–—|")


def _stands(answer: str, sentences: list[str]) -> bool:
    """Return whether the sentences after an answer leave it standing.

    A bare "No." or "That is wrong." counts only near the answer, before the text turns to something
    else: in a proof after the answer, it is about another number.
    """
    stands = near = True
    subject = re.escape(_words(answer[:40]))
    denied = re.compile(rf"(?:(?:the answer|it) is not {subject}|{subject} {_FAULTS})(?![0-9])")
    for sentence in sentences:
        sentence = sentence.strip(" |:.-")
        marker = _MARKER.match(sentence)
        claim = sentence[marker.end() :] if marker else sentence
        told = marker is not None and not _CONCLUDING.match(sentence)
        refused = _ALONE.fullmatch(claim) or (not claim and _NO.search(sentence))
        faulty = _FAULTY_NEAR.match(claim)
        denies = _FAULTY.match(claim) or _GIVING_UP.match(claim) or denied.match(claim)
        if denies or (near and refused) or (faulty and (near or told)):
            stands = False
        elif _CONFIRMED.match(sentence):
            stands = True
        elif near and (told or _SHOULD.match(sentence)) and (other := _OTHER.fullmatch(claim)):
            stands = stands and other[1].rstrip(".,") == answer
        elif claim:
            near = False
    return stands
