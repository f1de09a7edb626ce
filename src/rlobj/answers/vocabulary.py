"""Tables: the meaning of LaTeX commands and words."""

from __future__ import annotations


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


FUNCTIONS = word_set(
    """sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot arcsec arccsc arcsinh
    arccosh arctanh asin acos atan ln log lg exp sqrt abs floor ceil max min Gamma
    gcd lcm"""
)
UNSUPPORTED = word_set("int iint iiint oint lim")
"""Commands that need a computer algebra system."""
CONSTANTS = {"pi": "pi", "infty": "∞", "infinity": "∞", "inf": "∞", "e": "e", "i": "i"}
GREEK = word_set(
    """alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi
    rho varrho sigma varsigma tau upsilon phi varphi chi psi omega Delta Theta Lambda Xi Pi Sigma
    Upsilon Phi Psi Omega hbar ell nabla partial angle odot triangle imath jmath"""
)
ACCENTS = word_set(
    """dot ddot hat widehat bar overline vec tilde widetilde mathbb mathcal mathfrak mathscr
    overrightarrow"""
)
SYMBOLS = {
    **dict.fromkeys(word_set("cdot times ast"), "*"),
    **dict.fromkeys(word_set("le leq leqslant leqq"), "<="),
    **dict.fromkeys(word_set("ge geq geqslant geqq"), ">="),
    **dict.fromkeys(word_set("ne neq"), "!="),
    **dict.fromkeys(word_set("setminus backslash smallsetminus"), "∖"),
    **dict.fromkeys(word_set("lvert rvert vert mid"), "|"),
    **dict.fromkeys(word_set("approx simeq thickapprox doteq"), "≈"),
    **dict.fromkeys(word_set("emptyset varnothing"), "∅"),
    **dict.fromkeys(word_set("lor vee"), "or"),
    **dict.fromkeys(word_set("land wedge"), "and"),
    **dict.fromkeys(word_set("circ degree textdegree"), "°"),
    **dict.fromkeys(word_set("dots ldots cdots"), "…"),
    **dict.fromkeys(word_set("lbrace {"), "\\{"),
    **dict.fromkeys(word_set("rbrace }"), "\\}"),
    **dict.fromkeys(word_set("$ textdollar"), "$"),
    "div": "/",
    "lt": "<",
    "gt": ">",
    "pm": "±",
    "mp": "∓",
    "in": "∈",
    "notin": "∉",
    "|": "|",
    "cup": "∪",
    "bigcup": "∪",
    "cap": "∩",
    "bigcap": "∩",
    "langle": "⟨",
    "rangle": "⟩",
    "lfloor": "⌊",
    "rfloor": "⌋",
    "lceil": "⌈",
    "rceil": "⌉",
    "lbrack": "[",
    "rbrack": "]",
    "infty": "∞",
    "prime": "'",
    "colon": ":",
    "equiv": "≡",
    "euro": "€",
    "pounds": "£",
    "%": "%",
    "&": "&",
    "#": "#",
    "_": "_",
}
"""Command, or character after a backslash -> symbol."""
IGNORED = word_set(
    """left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle
    textstyle scriptstyle limits nolimits quad qquad thinspace negthinspace medspace thickspace
    space enspace rm bf it sf tt normalfont bfseries mathstrut strut tiny small large Large LARGE
    huge Huge normalsize footnotesize blacksquare checkmark square qed boldmath relax hfill
    nonumber notag noindent protect null allowbreak par"""
)
"""Commands without meaning."""
SKIPPED_ARGUMENT = word_set(
    "hspace vspace phantom hphantom vphantom tag label color textcolor colorbox kern"
)
FONTS = word_set(
    """boxed fbox framebox bm boldsymbol mathbf mathit mathnormal underline emph mathsf mathtt
    ensuremath mathord mathopen mathbin mathrel mathclose mathinner mathop pmb num ang"""
)
TEXTS = word_set(
    """text textbf textit textrm textsf texttt textnormal textup textsc mbox hbox mathrm
    operatorname si unit"""
)
FRACTIONS = {name: name[1:] for name in ("dfrac", "tfrac", "cfrac", "sfrac", "dbinom", "tbinom")}
FRACTIONS |= {"nicefrac": "frac", "xfrac": "frac"}
ASCII = {"**": "^", "==": "=", ":=": "=", "=<": "<=", "=>": ">="}
WORDS = {
    "or": "or",
    "and": "and",
    "union": "∪",
    "percent": "%",
    "degrees": "°",
    "degree": "°",
}
"""Word -> symbol."""
TEXT_WORDS = {**WORDS, "to": ":", **dict.fromkeys(("is", "equals", "is equal to"), "=")}
"""The whole of a text command -> symbol."""
LATEX = {
    "*": r"\cdot",
    "<=": r"\le",
    ">=": r"\ge",
    "!=": r"\ne",
    "∖": r"\setminus",
    "≈": r"\approx",
    "°": r"^\circ",
    "…": r"\dots",
    "±": r"\pm",
    "∓": r"\mp",
    "∈": r"\in",
    "∪": r"\cup",
    "⟨": r"\langle",
    "⟩": r"\rangle",
    "⌊": r"\lfloor",
    "⌋": r"\rfloor",
    "⌈": r"\lceil",
    "⌉": r"\rceil",
    "∞": r"\infty",
    "%": r"\%",
    "$": r"\$",
    "pi": r"\pi",
}
"""Symbol -> LaTeX."""
