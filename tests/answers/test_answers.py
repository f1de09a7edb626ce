# ruff: noqa: E501 (a row is read as a line of a table)
r"""Equal and unequal answers for gold answers, by kind.

Each row is `gold: equal answers | other answers`, separated by " ; ".
"""

import contextlib
import time
from pathlib import Path

import pytest
import yaml

from rlobj.answers.comparison import check_equivalence
from rlobj.answers.lexer import Unreadable
from rlobj.answers.normalization import normalize
from rlobj.answers.structure_parser import parse_structure

ROWS = {
    "scientific notation": r"""
        4.5e33: 4.5\times 10^{33} ; 4.5 \cdot 10^{33} ; 4.5*10^33 ; 4.5E+33 ; 45\times10^{32} ; 4.5×10³³ | 4.5\times10^{32} ; 4.6e33 ; 4.5 ; 4.5000001e33
        1e-5: 10^{-5} ; 0.00001 ; \frac{1}{100000} ; 10⁻⁵ | 0.0001 ; 0
        3e8: 3 \times 10^8 \text{ m/s} ; 300000000 ; 3\times10^{8}\,\mathrm{m\,s^{-1}} | 3e9 ; 8
        2.88e-19: 2.88\cdot10^{-19} | 0 ; 2.88e-18
    """,
    "rounding": r"""
        \frac{14}{3}: 14/3 ; 4\frac{2}{3} ; 4 2/3 ; \frac{14}{3} \approx 4.67 | 4.67 ; 4.666666666667 ; \approx 4.67 ; \frac{14}{3} \approx 6
        \frac13: 0.\overline{3} ; 0.\bar{3} | 0.3333333333333333 ; 0.333
        \frac{1}{\sqrt2}: \sqrt{2}/2 ; 2^{-1/2} | 0.7071067811865476
        \sqrt2: √2 ; sqrt(2) | 1.41421356237309504880168872420969807856967187537694
        \pi: π | 3.14159 ; 22/7
        0.785398: .785398 | \frac{\pi}{4} ; 0.7854
        4.67: \approx 4.67 ; \frac{467}{100} | \frac{14}{3} ; 5
        .0000672: 6.72e-5 | 0.0000671 ; 0
        2: 2.0 ; 02 ; +2 | 2.0000000001 ; 1.99999999999
    """,
    "unsimplified values": r"""
        1024: 2^{10} ; 32^2 ; 2^{10} = 1024 ; 1{,}024 | 2^{11} ; 2^{10} = 1025 ; 2^{10} - 1
        55: \sum_{k=1}^{10} k ; \binom{11}{2} ; 5 \cdot 11 | \sum_{k=1}^{9} k
        1: \int_0^1 2x\,dx ; \lim_{x\to0}\frac{\sin x}{x} ; \sum_{n=1}^\infty 2^{-n} ; 0! | \int_0^1 x\,dx ; x/x ; \sin^2 x + \cos^2 x
        \frac{n(n+1)}{2}: \sum_{k=1}^n k ; \frac{n^2+n}{2} ; \binom{n+1}{2} | \frac{n(n-1)}{2}
        \left\lfloor\log _{2} n\right\rfloor+1: 1 + \lfloor \log_2 n \rfloor | \lceil \log_2 n \rceil
        \cot x: \frac{\cos x}{\sin x} ; 1/\tan x | \tan x
    """,
    "percent": r"""
        0.5: 50\% ; 50% ; \frac12 ; 50 \text{ percent} | 0.5\% ; 50
        8 \%: 8 ; 0.08 ; 8 percent ; \frac{2}{25} | 80 ; 80\% ; 0.8 ; 8 \text{ cm}
        62.5%: 62.5 ; 62\frac12\% ; \frac58 | 6.25 ; 625
        .35625: 35.625\% | 35.625
        204: 20400\% | 204\%
    """,
    "three values or one number": r"""
        353,357,360: 353, 360, 357 ; 353357360 | 353, 357 ; 353, 357, 361
    """,
    "nouns": r"""
        33: 33\text{ subsets} ; 33 ordered pairs (a,b) ; \text{exactly } 33 ; \text{a total of 33} ; 33 \text{ of the values of } n | 34\text{ subsets} ; thirty-three ways ; \text{at least } 33 ; 33 \text{ or more} ; 33 \text{ less than } n ; 33 \text{ or } 34 \text{ ways} ; 33 \text{ factorial} ; 33 \text{ million} ; \text{not } 33
        33 \text{ subsets}: 33 ; 33\text{ sets} | 34 ; 33 \text{ million}
        36: 3\text{ dozen eggs} | 3
    """,
    "numbers in words, which are not read, and repeating decimals": r"""
        \frac23: 2/3 ; 2\text{ thirds} | \text{two thirds} ; two-thirds ; \text{two} ; two-digit
        5: 5 | 5\text{ twelfths} ; 5\text{ hundred} ; 5\text{ (five)} ; \text{five} ; 5^{\text{th}}
        \frac59: 0.555\ldots ; 0.(5) ; 0.\overline{5} ; 0.\dot{5} | 0.555 ; 0.5\ldots
        \pi: \pi | 3.14159\ldots
        \text{third}: \text{the third} | \frac13 ; 3 ; 3^{\text{rd}}
    """,
    "choices with their values": r"""
        \text{(C)}: \textbf{(C)}\ 12 ; (C) 12 ; \text{Option C: } 12 | (D) 12 ; (C) 12, (D) 13 ; 12
        12: \textbf{(C)}\ 12 ; C. 12 | (C) 13 ; C
    """,
    "words for nothing": r"""
        \text{no solution}: \emptyset ; \text{none} ; \text{DNE} | 0 ; \text{no}
    """,
    "what a reader does not see": r"""
        5: {\color{red}5} | \textcolor{white}{5} ; \phantom{5} ; 6\hspace{-1em}5 ; \cancel{6}5
    """,
    "units": r"""
        5: 5 \text{ cm} ; 5 cm ; 5\text{ apples} ; 5\,\mathrm{m/s^2} ; \$5 | 5m ; 5 m ; 5k ; 5\text{ million} ; 5\text{ or }6 ; 5\%
        6m: 6\,m ; m \cdot 6 | 6 ; 6n ; 6\text{ m}
        \frac{1}{m} t: \frac{t}{m} | t ; 1
        \frac{37}{4} m: \frac{37m}{4} | \frac{37}{4}
        864 \mbox{ inches}^2: 864 ; 864 in^2 ; 864 square inches | 864 feet ; 864 \text{ inches} ; 865
        5.4 \text{ cents}: 5.4 ; 5.4¢ | 5.4 dollars ; \$5.4
        \$18.90: 18.9 ; 18.9 dollars ; $18.90 | 1890 cents ; €18.90
        90^\circ: 90 ; 90 degrees ; 90° ; 90^{\circ} | 91^\circ ; \frac{\pi}{2} ; 90\%
        5000000: 5\text{ million} | 5 billion
    """,
    "thousands": r"""
        1234567: 1 234 567 ; 1\,234\,567 ; 1{,}234{,}567 ; 1,234,567 ; 1,\!234,\!567 | 1.234.567 ; 1,234 567 ; (1,234,567)
        1234: 1,234 | 12,34 ; 1, 234
        1,234: 1234 ; 1\,234 | 1, 235
    """,
    "fractions": r"""
        -\frac{1}{2}: \frac{-1}{2} ; \frac{1}{-2} ; -1/2 ; -.5 ; -\dfrac12 ; −½ ; -\tfrac{2}{4} | \frac12 ; -2
        \frac73: 2\frac13 ; 2 1/3 ; 7/3 | 2\cdot\frac13 ; \frac{73}{10}
        0.5: ½ ; 1⁄2 ; \frac 12 ; \frac{1}{2} | ½½
        2^{-1}: 2^-1 ; 0.5 | -2
    """,
    "unicode": r"""
        3: ３ ; \u200b3 ; 𝟑 | ³
        x^2+1: x²+1 | x2+1
        x_1: x₁ ; x_{1} | x_2 ; x ; X_1
        2\sqrt3: 2√3 ; √12 | √3
        \infty: ∞ ; +\infty | -\infty ; 5 ; \frac{1}{0}
    """,
    "case and subscripts": r"""
        3R^2: 3RR | 3r^2 ; 3
        p - q: p-q ; -q+p | q-p ; P-Q
        \frac{1}{3} E_{1}+\frac{2}{3} E_{2}: E_1/3+2E_2/3 | E_2/3+2E_1/3 ; \frac23 ; E
        \lambda_{\text {red}} / \sqrt{2}: \frac{\lambda_{red}}{\sqrt2} | \lambda/\sqrt2 ; \frac{1}{\sqrt2}
        I(0) e^{-\frac{t}{R C}}: I(0)e^{-t/RC} | 0 ; I e^{-t/RC}
    """,
    "assignments and equations": r"""
        5: x=5 ; k = 5 ; 5=x ; 2+3=5 ; \text{Area} = 5 ; AB = 5 | x=6 ; 5=6 ; x+1=5 ; 2x = 10 ; \approx 5
        x=5: 5 | y=5 ; 2x=10
        0: x=0 | x^2-3x+2=0 ; y'+ry-rx(t)=0 ; 5x-7y+11z+4=0
        x^2-3x+2=0: 2x^2-6x+4=0 ; 0 = x^2-3x+2 ; 3x - x^2 = 2 | 0 ; 0=0 ; 1, 2 ; x^2-3x=0
        y = 2x + 3: 2x+3 ; 2x-y+3=0 ; y-3=2x | y=2x-3 ; x=2y+3
        f(x)=2x: 2x ; f(x) = x+x | g(x)=2x ; f(x)=x^2
        MR=SRMC: SRMC=MR ; \text{MR} = \text{SRMC} | SRMC ; MR=LRMC
        m \frac{d v}{d t}+b v=f: m\frac{dv}{dt}+bv=f | m\frac{v}{t}+bv=f
    """,
    "lists, sets, tuples": r"""
        5,6: 6,5 ; \{5,6\} ; 5 or 6 ; 5 \text{ and } 6 ; x=5, x=6 ; x_1=6,x_2=5 | 5 ; 5,6,6 ; (5,6) ; [5,6]
        5: 5; | 5 or 6 ; 5, 6 ; either 5 or 6 ; 5, 5 ; \{5\} ; 5 (or 6) ; maybe 5 ; 5?
        16,3,1,1: 1,16,1,3 | 16,3,1 ; 16,16,3,1
        (-2,1): (-2, 1) ; \left(-2,1\right) ; x=-2, y=1 ; (x,y)=(-2,1) | (y,x)=(-2,1) ; (y,x)=(1,-2) ; (1,-2) ; 1,-2 ; -2,1 ; [-2,1]
        (1,2),(3,4): (3,4),(1,2) ; \{(1,2),(3,4)\} ; (1,2) and (3,4) ; (1,2);(3,4) | (2,1),(3,4) ; (1,2,3,4) ; (1,2)
        1 \pm \sqrt{19}: 1+\sqrt{19}, 1-\sqrt{19} ; x=1\pm\sqrt{19} | 1+\sqrt{19} ; -1\pm\sqrt{19}
        \varnothing: \emptyset ; \{\} | \{\emptyset\} ; 0
        3:30: 3\!:\!30 | 3:31 ; 330 ; \frac{3}{30}
    """,
    "intervals and inequalities": r"""
        x \in [-2,7]: -2 \le x \le 7 ; 7\ge x\ge -2 ; [-2,7] ; \{x \mid -2 \le x \le 7\} ; [-2,7] | (-2,7) ; -2<x<7 ; y \in [-2,7] ; 7 \le x \le -2
        (2,\infty): x>2 ; 2<x ; (2,+\infty) | x>=2 ; [2,\infty) ; 2 ; ]2,\infty[
        1<x<2: (1,2) ; 2>x>1 | 2<x<1 ; [1,2] ; 1 \le x \le 2
        (-\infty, 2) \cup (3, \infty): x>3 \text{ or } x<2 ; (3,\infty)\cup(-\infty,2) | (-\infty,2) ; (-\infty, 2) \cup [3, \infty)
        (-\infty,2)\cup(2,\infty): x \neq 2 ; \mathbb{R}\setminus\{2\} | \mathbb{R} ; x = 2
        (-\infty, 0) \cup\{1\}: \{1\} \cup (-\infty, 0) | (-\infty,0)\cup(1)
        k \geqslant 2: k\ge 2 ; 2 \le k | k>2 ; k \le 2 ; 2
    """,
    "matrices": r"""
        \begin{pmatrix}1&2\\3&4\end{pmatrix}: \begin{bmatrix}1&2\\3&4\end{bmatrix} ; \left(\begin{matrix}1&2\\[4pt]3&4\end{matrix}\right) | \begin{pmatrix}1&2\\4&3\end{pmatrix} ; 1,2,3,4
        \begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}: \frac13\begin{pmatrix}-1\\2\end{pmatrix} ; (-\frac13, \frac23) | \begin{pmatrix} 2/3 \\ -1/3 \end{pmatrix}
    """,
    "bases": r"""
        52_8: 52_{8} ; 52_{\text{eight}} ; 052_8 ; 52 base 8 | 52 ; 42 ; 52_9
        42: 42_{10} | 52_8
    """,
    "choices and words": r"""
        \text{(C)}: C ; (C) ; \text{C} ; \textbf{(C)} ; C. ; C) ; Option C | D ; c ; A, C ; 5
        \text{Evelyn}: Evelyn ; evelyn ; \text{Evelyn}. | nylevE ; \text{Bob} ; Evelyn and Bob ; not Evelyn
        Evelyn: \text{Evelyn} | Eve lyn n
        \text{Yes}: yes ; YES ; Yes. | no ; yes and no ; true
        \text{May 5}: May 5 | May 6 ; 5
    """,
    "complex numbers": r"""
        2+5i: 5i+2 ; 2 + 5 i | 2-5i ; 2+5j ; 7 ; (2,5)
        \frac{4 A}{3+3 i} e^{i t}: \frac{2A(1-i)}{3} e^{it} | \frac{4 A}{3-3 i} e^{i t}
    """,
    "residue classes": r"""
        6: 13 \bmod 7 ; N \bmod 7 = 6 | x \equiv 6 \pmod 7 ; 2^{100} + 4 \equiv 6 \pmod{14} ; 6 \pmod 7 ; 6 \pmod{7} ; 6 \mod 7 ; 6 \bmod 7 ; 6 (mod 7) ; 6 \text{ mod } 7 ; 6, 13 \pmod 7 ; \{6 \pmod 7\} ; x \equiv 5 \pmod 7
        -1: -1 | -1 \mod 7 ; -1 \bmod 7 ; -1 \pmod 7
        6.0: 6.0 ; 13 \mod 7 | 6.0 \mod 7 ; (6) \bmod 7 ; 6 \mod{(7)} ; {6}\bmod{7}
        1,3: 3, 1 | 1 \pmod 4, 3 \pmod 4 ; 1, 3 \pmod 4
    """,
    "functions of an unknown name": r"""
        6: \text{Answer: } 6 ; \text{answer} = 6 ; \text{The answer is }(6) ; \text{Answer:} (6) ; \operatorname{lcm}(2,3) ; f(2) = 6 | \operatorname{answer}(6) ; \operatorname{answer}\left(6\right) ; \text{answer}(6) ; \mathrm{value}(6) ; answer(6) ; g(6) ; \mathrm{f}(6) ; \operatorname{answer}(3)+3 ; \text{number}(3) \cdot 2 ; \operatorname{answer}\,(6)
        66: 66 | answer (66) ; \text{ans}(66) ; \operatorname{id}(66)
        (1,2): \text{vertex} (1,2) ; \text{Point }(1,2) ; P(1,2) ; \text{Answer: }(1,2) | \operatorname{answer}(1,2) ; \text{answer}(1,2)
    """,
    "assignments to different unknowns": r"""
        1,-2: x=1 \text{ or } x=-2 ; x_1 = 1, x_2 = -2 ; x_{2}=1, x_{1}=-2 ; x = 1, -2 ; r_1 = -2 \text{ and } r_2 = 1 ; \{x=1, x=-2\} | x=1, y=-2 ; y=-2, x=1 ; x=1 \text{ and } y=-2 ; x=1 \text{ or } y=-2 ; a=1; b=-2 ; x_1=1, y_1=-2 ; \alpha=1, \beta=-2 ; x+y=1, x-y=-2 ; \{x=1, y=-2\} ; \begin{cases} x=1 \\ y=-2 \end{cases}
        3,3: x=3, x=3 | x=3, y=3
        (1,-2): x=1, y=-2 ; y=-2, x=1 ; (x,y)=(1,-2) | x=-2, y=1
        x=1, y=-2: y=-2, x=1 | x=-2, y=1 ; a=1, b=-2
    """,
    "grouped thousands inside arguments": r"""
        \frac{20000}{\pi}: \frac{20,000}{\pi} ; \dfrac{20{,}000}{\pi} ; \frac{20\,000}{\pi} ; \frac{2 \cdot 10,000}{\pi} | \frac{20, 000}{\pi} ; \frac{20,00}{\pi} ; \frac{2,0000}{\pi} ; \frac{(20,000)}{\pi} ; \frac{21,000}{\pi}
        10\sqrt{10}: \sqrt{1,000} ; \sqrt{1000} | \sqrt{1,00} ; \sqrt{(1,000)} ; \sqrt{1, 000} ; \sqrt{1,000,00} ; \sqrt{0,001}
        1000: \sqrt{1,000,000} ; \mathbf{1,000} ; \frac{2,000}{2} ; \frac{1,000.0}{1} | (1,000) ; \max(1,000) ; \{1,000\} ; \max{1,000} ; [1,000]
        x_{1000}: x_{1000} | x_{1,000}
        f(1000): f(1000) | f(1,000) ; \frac{f(1,000)}{1}
        250: \frac{1,000}{4} | \frac{0,500}{2} ; \frac{0,1000}{4}
    """,
    "degrees with the letter o": r"""
        90^\circ: 90^{\mathrm{o}} ; 90^\mathrm{o} ; 90^{\rm o} ; 90^{o} ; 90^o ; 90^{\text{o}} ; 90^{\textrm{o}} ; 90^{\mathrm{\circ}} ; 90^{{\circ}} ; 90^{\mathrm{o}}\mathrm{C} | 91^{\mathrm{o}} ; 90^{0} ; 90^{oo} ; 90^{o+1} ; 9^{0o} ; 90_{o}
        45^\circ, 60^\circ: 60^{\mathrm{o}}, 45^{\mathrm{o}} | 45^{\mathrm{o}}, 61^{\mathrm{o}}
        \frac{270}{7}: \frac{270}{7}^{\mathrm{o}} | \frac{271}{7}^{\mathrm{o}}
        \frac{1}{2}: \sin 30^{\mathrm{o}} ; \sin{30^{\circ}} ; \sin{30^{\mathrm{\circ}}} | \sin 31^{\mathrm{o}} ; \cos 30^{\mathrm{o}} ; \sin{31^{\circ}}
        90: 90^{°} ; 90^{\text{°}} ; 90^\text{°} ; {90^{\circ}} | 91^{°} ; 9^{0°}
        x: x | x^{o} ; x^{\mathrm{o}} ; x_1^{o}
        x_1: x_1 | x_1^{o} ; x_1^{\mathrm{o}}
    """,
    "labels before words": r"""
        \text{Evelyn}: \text{Student: Evelyn} ; \text{The winning student: Evelyn} ; \text{Name: }\text{Evelyn} ; \textbf{Winner:} Evelyn ; Runner: Evelyn ; \text{Student}: \text{Evelyn} ; \text{Student : Evelyn} ; \text{Student's name: Evelyn} | \text{Student : Bob} ; \text{Student's rival: Evelyn} ; \text{Student: Bob} ; \text{not Evelyn: Bob} ; \text{Bob: Evelyn} ; \text{Evelyn: Bob} ; \text{Not the student: Evelyn} ; \text{Wrong student: Evelyn} ; \text{Rejected student: Evelyn} ; \text{Other student: Evelyn} ; \text{Losing student: Evelyn} ; \text{Former winner: Evelyn} ; \text{Contrary to student: Evelyn} ; \text{Student: not Evelyn} ; \text{Student: Evelyn or Bob} ; \text{Students: Evelyn, Bob} ; \text{Perhaps the student: Evelyn} ; \text{No student: Evelyn}
        \text{east}: \text{Direction: east} ; \text{Heading: east} | \text{Direction: west} ; \text{Opposite direction: east} ; \text{west: east}
        \text{ellipse}: \text{Type of curve: an ellipse} ; \text{Conic section: ellipse} | \text{parabola: ellipse} ; \text{Type: parabola}
        \text{even}: \text{Parity: even} | \text{odd: even} ; \text{Parity: not even}
    """,
    "units of physics": r"""
        5: 5 \AA ; 5\,\text{\AA} ; 5\,\mathrm{\mathring{A}} ; 5 Å ; 5 arcsec ; 5\,\mathrm{arcsec} ; 5 \mu m ; 5\,\mu\mathrm{m} ; 5\,\mathrm{\mu m} ; 5 µm ; \lambda = 5\ \mu m ; 5 \text{ $\mu$m} ; 5 M_\odot ; 5\,M_{\odot} ; 5\,\mathrm{M}_\odot ; 5\,\mathrm{M_\odot\,yr^{-1}} ; 5\, R_\odot ; 5\,L_{\odot} ; 5 M_\oplus ; 5 Jy ; 5\text{ mJy} ; 5 dB ; 5\,\mathrm{dB} ; 5\,\mathrm{k\Omega} ; 5\,\mathrm{mA} ; 5\,\mu\mathrm{F} ; 5\,\mathrm{erg\,cm^{-2}\,s^{-1}\,Hz^{-1}} | 6 \mu m ; 5 \mu ; 5 m ; 5\mu g ; 5 \mu N ; 5 \mu m v ; 5^{\mu m} ; 5+\mu m ; 5 M ; 5 M_J ; 5 M_\odot c^2 ; 5 + M_\odot ; 5 M_\odot^2 ; 5 mA ; 5kV ; 5 d B ; 5 J y ; M_\odot ; \frac{5}{M_\odot} ; 6 dB
        3e5: 3 \times 10^{5} M_\odot ; 3\times10^5\,\mathrm{M_\odot} ; 3 \times 10^{5}\,\mu m ; 300\,000\ \AA | 3 M_\odot ; 3 \times 10^{6} M_\odot ; 3 \times 10^{5} M
        5 M_\odot: 5 ; 5\,\mathrm{M}_\odot ; M = 5 M_{\odot} | 5 L_\odot ; 5 \text{ kg} ; 6 M_\odot ; 5 M
        5\,\mu\mathrm{m}: 5 \mu m ; 5 \text{ micrometers} ; 5 | 5\text{ nm} ; 5\text{ m} ; 5 \mu\mathrm{s}
        5\text{ kg m}: 5\,\mathrm{kg\,m} | 5\text{ kg} ; 5\,\mathrm{kg\,s}
        \mu m g: \mu m g ; mg\mu | g ; \mu m
        3 m \mu: 3 \mu m ; x = 3\mu m | 3 ; 3 \mu ; 2 \mu m
        4: 4\text{ cm} ; 4\ \AA ; 4\text{ N} m ; 4\text{ hours} (a,b) | 4\text{ cm} x ; 4 \AA x ; 4\text{ seconds} t
        4\text{ kPa}: 4\text{ kPa} ; 4 | 4\text{ hPa} ; 4\text{ MPa}
        4\text{ MWh}: 4\text{ MWh} ; 4 MWh | 4\text{ kWh} ; 4\text{ GWh}
        4\text{ TeV}: 4\text{ TeV} | 4\text{ PeV} ; 4\text{ EeV}
        6 M_\odot c^2: 6 c^2 M_\odot | 6 c^2 ; 6 ; 6 M_\odot
        \frac{\pi}{3}: \operatorname{arcsec}(2) ; \operatorname{arcsec} 2 | 2\text{ arcsec}
    """,
    "letters after a slash": r"""
        \frac{x}{y} e^{-t}: x/y e^{-t} | x/ye^{-t}
        \frac{x}{ye^{-t}}: x/ye^{-t} | x/y e^{-t}
        \frac{1}{xe}: 1/xe | 1/x e
        \frac{k\pi}{n}: k/n\pi ; k\pi/n | k/(n\pi)
        \frac{k\alpha}{\pi}: k/\pi\alpha | k/(\pi\alpha)
        \frac{V}{\omega C\mu}: V/\omega C\mu ; V/\omega\mu C | V\mu/\omega C
        \frac{V}{C}\mu: V\mu/C | V/C\mu
        \frac{V}{\lambda k^2T}: V/\lambda k^2T | V/k\lambda^2 T ; VT/\lambda k^2
        \frac{VT}{\lambda k^2}: VT/\lambda k^2 | V/\lambda k^2T ; V/k^2\lambda T
        \frac{VT}{k^2}: V/k^2T ; VT/k^2 | V/(k^2T)
        e^{hc/(\lambda kT)}: e^{hc/\lambda kT} ; e^{hc/\lambda k T} ; e^{\frac{hc}{\lambda kT}} ; e^{h c /(\lambda k T)} | e^{hckT/\lambda} ; e^{hcT/\lambda k} ; e^{hc/\lambda k} ; e^{hc/\lambda} kT
        \frac{E}{kT}: E/kT ; E/(kT) | ET/k ; \frac{E}{k}T ; E/k
        \frac{E}{k_B T}: E/k_BT ; E/k_B T ; E/k_{\mathrm{B}}T | ET/k_B ; \frac{E}{k_B}T
        \frac{2\pi}{\omega t}: 2\pi/\omega t | \frac{2\pi}{\omega} t
        \frac{x}{\lambda} + kT: x/\lambda + kT | x/(\lambda + kT)
        \frac{1}{\tau} e^{-t/\tau}: 1/\tau e^{-t/\tau} | \frac{1}{\tau e^{-t/\tau}}
        \frac{x kT}{\lambda}: x/\lambda \cdot kT ; xkT/\lambda | x/\lambda kT
        \frac{v_0}{r_0} t: v_0/r_0 t | \frac{v_0}{r_0 t}
        \frac{tx}{RC^2}: t/RC^2 x | \frac{t}{RC^2 x}
        \frac{x}{2}: 1/2x | \frac{1}{2x}
        \frac{kT}{2}: 1/2kT | \frac{1}{2kT}
        \frac{z}{f(y)}: 1/f(y)z | \frac{1}{z f(y)}
    """,
    "decoration": r"""
        5: \mathbf{5} ; $5$ ; \[5\] ; **5** ; 5. ; \text{5} ; 5\, ; \left(5\right) ; {5} ; 5\\ ; \displaystyle 5 ; \boxed{5} ; \Large 5 ; $\boxed{5}$ | 5' ; 55 ; 5 5 ; ~~5~~ ; \text{not } 5 ; \neq 5 ; 5+
    """,
    "hostile answers": r"""
        5: 10/2 | 9^{9^9} ; 1e400 ; 1/0 ; __import__('os') ; \frac{1}{ ; 5!!!! ; (((5 ; \prod_{k=1}^{10000000} k ; 7^{10^{18}} \pmod{10^9+7}
        0: 0.0 | 0/0 ; \frac{1}{10000000} ; 10^{-40} ; e^{\pi\sqrt{163}}-262537412640768744
    """,
}


POLICY = Path(__file__).parents[2] / "docs" / "verifier-policy.yaml"


def policies():
    """The examples of the table of policies in docs/verifier.md."""
    for row in yaml.safe_load(POLICY.read_text(encoding="utf-8")):
        assert row["right"], row
        assert row["wrong"], row
        for expected, answers in ((True, row["right"]), (False, row["wrong"])):
            yield from ((answer, row["gold"], expected) for answer in answers)


def pairs(rows):
    for row in rows.strip().splitlines():
        gold, _, answers = row.strip().partition(": ")
        right, _, wrong = answers.partition(" | ")
        for expected, given in ((True, right), (False, wrong)):
            for answer in given.split(" ; "):
                yield answer.replace(r"\u200b", "\u200b"), gold, expected


def as_expected(verdict, expected):
    if expected is False and verdict.correct is None:  # beyond the parser or a limit
        return verdict.reason.startswith(("not readable: ", "too large: "))
    return verdict.correct is expected


@pytest.mark.parametrize("kind", [*ROWS, "page"])
def test_verdicts_of_the_tables_and_of_the_documented_policies(verifier, kind):
    other = {}
    for answer, gold, expected in policies() if kind == "page" else pairs(ROWS[kind]):
        verdict = verifier.verify(f"So it is \\boxed{{{answer}}}.", gold)
        if not as_expected(verdict, expected):
            other[answer, gold] = verdict
    assert other == {}


@pytest.mark.parametrize("gold", [r"t(0,4]", r"\frac{", r"\sqrt", r"((9!)!)!", r"6 \pmod{7}"])
def test_unreadable_gold_is_undecided_unless_the_texts_are_equal(gold):
    assert check_equivalence("7", gold)[0] is None
    assert check_equivalence(gold, gold)[0] is True


def test_gold_in_prose_is_undecided(verifier):
    gold = "$f(x)=a x+b$ works only if $b$ divides an arbitrary integer and $a$ is its square"
    assert verifier.verify(r"\boxed{ax+b}", gold).correct is None


def test_conditions_behind_a_gold_may_be_left_out(verifier):
    gold = "$f(x)=a x+b$, where $b$ is an arbitrary integer and $a$ is positive"
    assert verifier.verify(r"\boxed{ax+b}", gold).correct is True
    assert verifier.verify(r"\boxed{ax-b}", gold).correct is False


@pytest.mark.parametrize(
    "piece", ["1,", "x=", "(", "[", r"\{", "1+", r"\pm 1", "_", "^", "|", "5;"]
)
def test_parsing_takes_bounded_time(piece):
    started = time.process_time()
    with contextlib.suppress(Unreadable, RecursionError):
        parse_structure(piece * 1000 + "1")
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "text",
    [
        "^ " * 100 + r"\mu m",
        r"2^{3}\cdot " * 40 + r"\mu m",
        r"2^{3}\cdot " * 40 + r"L_\odot",
        "^{ - " * 100 + r"M_\odot",
        "{ " * 200 + r"\mu",
    ],
    ids=lambda text: text[:12] + text[-6:],
)
def test_hostile_blanks_and_powers_are_normalized_at_once(text):
    start = time.process_time()
    normalize(text)
    assert time.process_time() - start < 1
