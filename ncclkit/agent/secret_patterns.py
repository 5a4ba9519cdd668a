"""How secrets are spelled, and the signs without which none need be tried.

Every repeat has a bound or an end of its own, so that a hostile text costs no more than its length.
Standard library only, Python >= 3.9.
"""

import re
from functools import cache
from typing import Callable, NamedTuple, Union

REDACTED = "[redacted]"
Instead = Union[str, Callable[["re.Match[str]"], str]]


class SecretPattern(NamedTuple):
    """One way to write a secret."""

    signs: "tuple[str, ...]"
    """One of them stands in the text, in lower case."""
    source: str
    """The pattern as it is written: to compile all of them would take each agent 50 ms."""
    instead: Instead
    beside: "tuple[str, ...]" = ()
    """And one of these, where the signs alone are frequent."""

    @property
    def pattern(self) -> "re.Pattern[str]":
        """The same, compiled when it is first needed."""
        return _compiled(self.source)


@cache
def _compiled(source: str) -> "re.Pattern[str]":
    return re.compile(source)


# ---------------------------------------------------------------- names

# "key" alone would hide NCCL_IB_PKEY (an InfiniBand partition), which a diagnosis needs.
_PLAIN = re.compile(
    r"(?i)(?<![a-z])[pmrl]keys?(?![a-z])|key(?:board|pad|point|stone|word)"
    r"|tokeniz\w*|(?<![a-z])tokens(?![a-z])"
)
_LATIN = (
    r"(?:kennwort|mot[ _]?de[ _]?passe|contrase[nñ]a|senha|wachtwoord|has[lł]o|[sş]ifre|l[oö]senord"
    r"|salasana|adgangskode|passord|heslo|geslo|lozinka|jelsz[oó]|parola|parool|kata[ _]?sandi"
    r"|(?:zugangs|api)[ _-]?schl(?:ue|ü)ssel|cl[eé][ _](?:api|secr[eè]te|d['’]acc[eè]s)"
    r"|(?:clave|chave)[ _](?:secreta|de[ _](?:api|acceso|acesso))|m[aậ]t[ _]?kh[aẩ]u)"
)
_OTHER_SCRIPTS = (
    r"(?:密码|密碼|口令|密钥|密鑰|金鑰|令牌|凭证|パスワード|暗証番号|トークン|비밀번호|암호|토큰"
    r"|пароль|токен|סיסמה|كلمة المرور|كلمة السر|पासवर्ड|รหัสผ่าน|κωδικός)"
)
_NAME = re.compile(
    r"(?i)token|passw|passphrase|pwd|secret|credential|creds?(?![a-z])|auth|cookie|key|bearer"
    r"|jwt|session"
    r"|signature|private|conn(?:ection)?_?str"
    r"|(?<![a-z])(?:pass|pw|pat|sas|sig|t?otp|dsn|webhook|kubeconfig)(?![a-z])"
    rf"|(?<![a-z]){_LATIN}(?![a-z])|{_OTHER_SCRIPTS}"
)
_KEYS = (
    r"(?:(?:api|access|secret|private|account|shared|master|ssh|encryption|decryption|signing"
    r"|auth|license"
    r"|storage|subscription|client|wandb|comet|kaggle|fernet|aes|hmac|session|deploy|service"
    r"|symmetric"
    r"|pre-shared)[ _-]?key|(?-i:[A-Z0-9]_KEY))"
)
_SECRET_NAME = rf"(?:token|passwo?r?[dt]|pass|passphrase|secret|credentials?|jwt|t?otp|{_KEYS})"
"""The end of a name that a secret stands under, whatever is before it."""
_PASSWORD = r"(?:passwo?r?[dt]|passphrase|secret|t?otp)"
"""Those whose value may be a number."""
_SECRET_SIGNS = ("token", "pass", "secret", "credential", "jwt", "otp", "key")
_LATIN_SIGNS = (
    *(
        "kennwort",
        "de passe",
        "de_passe",
        "depasse",
        "contrasena",
        "senha",
        "wachtwoord",
        "haslo",
        "sifre",
    ),
    *(
        "losenord",
        "salasana",
        "adgangskode",
        "passord",
        "heslo",
        "geslo",
        "lozinka",
        "jelszo",
        "parola",
    ),
    *(
        "parool",
        "sandi",
        "schluessel",
        "cle api",
        "cle_api",
        "cle secr",
        "cle_secr",
        "cle d",
        "cle_d",
    ),
    *(
        "clave secr",
        "clave_secr",
        "clave de",
        "clave_de",
        "chave secr",
        "chave_secr",
        "chave de",
        "chave_de",
    ),
    *("mat khau", "mat_khau", "matkhau"),
)

# ---------------------------------------------------------------- what stands around a value

_QUOTE = r"(?:\\{0,15}[\"'`]|&quot;|&#3[49];|%(?:25){0,3}2[27]|[“”‘’「」『』])"
"""JSON within JSON doubles the backslashes each time."""
_EQUALS = (
    r"(?:: ?(?:str|bytes|SecretStr|Optional\[str\])(?: \| None)? ?=|:=|=>|={1,3}(?![>=])|:"
    r"(?!=)|[：＝]"
    r"|%(?:25){0,3}3[DdAa](?:%(?:25){0,3}20|\+){0,4}|\\{1,15}u003[ad]|&#(?:58|61);)"
)
_WRAPPED = rf"(?:(?:(?:[A-Za-z_][\w.]{{0,60}})?[(\[]\s{{0,4}})?(?:[bBrRuUfF]{{1,2}})?(?={_QUOTE}))?"
"""``SecretStr(`` and the b of a literal, where a quote follows."""
_GAP = rf"{_QUOTE}?\]?\s{{0,4}}{_EQUALS}\s{{0,2}}[ \t]{{0,60}}{_WRAPPED}"
"""Between a name and its value: ``=``, ``: ``, ``=>``, ``: str =``, the quote that ends a name."""
_NUL = r"(?:\0|\\{1,15}(?:x00|u0000))"
_APART = rf"(?:\\{{0,15}}[\"'`]?(?:,\s{{0,4}}|[ \t]{{1,4}}|{_NUL}))"
_NEXT = rf"(?:{_APART}\\{{0,15}}[\"'`]?)"
"""Between two words of a command line: blanks, or what a list of words has there."""
_START = r"(?:(?<![\w-])|(?<=x00)|(?<=u0000))"
"""Where a word of a command line begins."""
_WORD = r"[^\s\0\"'-][^\s\0\"']{0,200}"
_LINE = r"[ \t]{0,9}\r?\n[^\n]{0,80}?"
"""The end of a line, and what a launcher puts before the next one."""

# ---------------------------------------------------------------- values

_NOT_YET = r"(?!\[redacted|\{\s{0,4}\\{0,15}[\"'])"
_INNER = r"[^\s\"',;&<>)\]}\\\0，；。“”‘’「」『』]|\\(?!\\{0,15}[\"'`]|x00|u0000)"
_BARE = rf"{_NOT_YET}(?:{_INNER})+"
_QUOTED = (
    r"(?P<mark>\\{0,15}[\"'])(?P=mark){2}(?:(?!(?P=mark){3})(?s:.)){0,4000}"
    r"|(?P<deep>\\{1,15}[\"'`])(?:(?!(?<!\\)(?P=deep))[^\n\0])*"
    r"|\"(?:\\.|[^\"\\\n\0])*|'(?:\\.|[^'\\\n\0])*|`[^`\n\0]*"
    r"|[“‘「『][^”’」』\n\0]*"
    r"|(?P<entity>&quot;|&#3[49];)(?:(?!(?P=entity))[^\n\0])*"
    r"|(?P<percent>%(?:25){0,3}2[27])(?:(?!(?P=percent))[^\s\0])*"
)
_VALUE = rf"(?P<value>{_QUOTED}|(?!(?i:true|false|none|null)\b){_BARE})"
"""A value without the quote that ends it, so that JSON stays JSON."""
_NO_NUMBER = r"(?!\d+(?:\.\d+)?(?![\w.]))"
_COUNT = r"[\"']?\d{1,9}(?:\.\d{1,9})?(?:[mu]?s|µs|%)?(?![\w.+/=-])"
"""What stands behind the tokens that a model reads: how many, or the time for one."""
_STRANGE = r"(?=[^\s\"',;]{0,200}\d)(?=[^\s\"',;]{0,200}[A-Z])(?=[^\s\"',;]{8})" + _BARE
"""A value behind a word that is also plain English must look random."""
_NUMBERED = rf"(?=[^\s\"',;]{{0,200}}\d)(?=[^\s\"',;]{{6}}){_NO_NUMBER}{_BARE}"
"""One that no word of a sentence is."""
_MIXED = (
    r"(?=[A-Za-z0-9]{0,80}[a-z])(?=[A-Za-z0-9]{0,80}[A-Z])"
    r"(?=[A-Za-z0-9]{0,80}\d[A-Za-z]{1,80}\d)[A-Za-z0-9]{10,80}"
)
"""Letters of both cases between digits, as a generator of passwords mixes them."""
_OPENING = re.compile(rf"(?P<mark>\\{{0,15}}[\"'])(?P=mark){{2}}|{_QUOTE}")


def _hidden(value: str) -> str:
    """What is shown of a value: the quote that opens it."""
    opening = _OPENING.match(value)
    return (opening[0] if opening else "") + REDACTED


def _named(match: "re.Match[str]") -> str:
    return match[1] + _hidden(match["value"])


def _if_secret(match: "re.Match[str]") -> str:
    if is_secret(match["name"]):
        return _named(match)
    return match.group()


def _pair(match: "re.Match[str]") -> str:
    if is_secret(match["name"]):
        return match[1] + REDACTED
    return match.group()


def _between(match: "re.Match[str]") -> str:
    return match[1] + REDACTED + match["after"]


def _between_if_secret(match: "re.Match[str]") -> str:
    if is_secret(match["name"]):
        return _between(match)
    return match.group()


def is_secret(name: str) -> bool:
    """Whether a variable or field is a secret by its name.

    It errs on the safe side.
    """
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return bool(_NAME.search(_PLAIN.sub("", spaced)))


_USER = re.compile(r"(?:.*[^\w/.:@-])?[A-Za-z]\w{0,40}", re.S)


def _behind_user(match: "re.Match[str]") -> str:
    before = match.string[max(0, match.start() - 60) : match.start()]
    if _USER.fullmatch(before):
        return match[1] + REDACTED
    return match.group()


AFTER_FIRST = r"\1" + REDACTED

_KEYS_AND_URLS = (
    # a private key or a certificate, whole or torn; JSON writes its newlines as \n
    SecretPattern(
        ("---begin ", "--- begin "),
        (
            r"(?s)-{4,5} ?BEGIN [A-Z0-9 ]{1,60}-{4,5}"
            r"(?:(?:(?!----).){0,16000}-{4,5} ?END [A-Z0-9 ]{1,60}-{4,5}"
            r"|(?:(?:\s|\\[nr]){0,4}[A-Za-z0-9+/=]{16,})*)"
        ),
        REDACTED,
    ),
    # the same in base64, as kubectl keeps it
    SecretPattern(("ls0tls1crudjti",), r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]{16,}", REDACTED),
    # scheme://user:password@host, where the password may hold @ and /
    SecretPattern(
        ("://",),
        r"(?<=://)(?:[^/\s:@\"'<>]{0,256}:(?!\d+/)[^\s\"'<>]{1,512}@|[^/\s\"'<>]{1,512}@)",
        REDACTED + "@",
    ),
    # what a URL carries in its path: web hooks, conda channels
    SecretPattern(
        ("://",),
        (
            r"(?i)(://[^\s/\"']{1,250}/(?:t/|bot(?=\d)|api/webhooks/)"
            r"|://hooks\.slack\.com/\w{1,20}/"
            r"|://[\w.-]{1,200}webhook\.office\.com/"
            r"|://[^\s\"']{1,200}/(?:webhookb?\d?|hooks/catch/\d{1,20}|v\d/hook|with/key)/"
            r"|://[^\s\"']{1,300}[?&]key=)[\w:./@-]{8,}"
        ),
        AFTER_FIRST,
    ),
    # sqlplus scott/x@db, and the same alone where x looks random
    SecretPattern(
        ("sqlplus", "impdp", "expdp", "sqlldr", "rman", "tnsping", "oracle"),
        (
            r"(?i)(\b(?:sqlplus|impdp|expdp|sqlldr|rman|tnsping"
            r"|\w{0,20}oracle\w{0,20})\b[^\n|;]{0,200}?"
            rf"[\s\"'=]\w{{1,60}}/)(?!/)(?:(?!@){_INNER})+(?=@)"
        ),
        AFTER_FIRST,
    ),
    SecretPattern(
        ("@",), rf"(/){_MIXED}(?=@(?!v?\d|main\b|master\b|sha)[A-Za-z][\w.-])", _behind_user
    ),
)

_TUPLES = (
    # Session('AKIA…', 'x')
    SecretPattern(
        ("akia", "asia"),
        (
            r"(\b(?:AKIA|ASIA)[A-Z0-9]{12,40}\\{0,15}[\"'],\s{0,4}(?:\w{1,40}=)?\\{0,15}[\"'])"
            r"[^\"'\\\s]{8,400}"
        ),
        AFTER_FIRST,
    ),
    # auth=('alice', 'x'), HTTPBasicAuth('alice', 'x'), login("alice", "x")
    SecretPattern(
        ("auth", "login", "cred"),
        (
            r"(?i)((?:auth|login|credentials?"
            r"|creds)\w{0,20}\\{0,15}[\"']?\s{0,2}[:=]?\s{0,2}[(\[]\s{0,2}"
            r"\\{0,15}[\"'][^\"'\n]{1,80}?\\{0,15}[\"'],\s{0,4}[bru]?(?P<close>\\{0,15}[\"']))"
            r"(?:(?!(?P=close))[^\n]){1,400}"
        ),
        AFTER_FIRST,
    ),
    # ('alice', 'x') where x looks random
    SecretPattern(
        ("('", '("', "['", '["', '\\"'),
        (
            r"([(\[]\\{0,15}[\"'][^\"'\n]{1,80}?\\{0,15}[\"'],\s{0,4}[bru]?"
            r"(?P<close>\\{0,15}[\"']))"
            rf"{_MIXED}(?=(?P=close)[)\]])"
        ),
        AFTER_FIRST,
    ),
)


_NAMED_VALUES = (
    # Authorization: <scheme> <credentials>     Cookie: a=b; c=d
    # all of it, up to a quote or the end of the line
    SecretPattern(
        ("authorization", "cookie"),
        (
            rf"(?i)((?:authorization|cookie){_GAP}(?:{_QUOTE})?)(?!\s|\[redacted)"
            r"(?:[^\"'\r\n\\\0]|\\(?!\\{0,15}[\"']))+"
        ),
        AFTER_FIRST,
    ),
    SecretPattern(
        ("bearer", "basic"), r"(?i)\b(bearer:?|basic)\s+[a-z0-9+/=._~-]{8,}", r"\1 " + REDACTED
    ),
    # a telling name and its value: --password=x, "token": "x", ?sig=x, AccountKey=x
    SecretPattern(
        (
            *(
                "token",
                "passw",
                "passp",
                "pwd",
                "secret",
                "credential",
                "key",
                "auth",
                "jwt",
                "otp",
            ),
            *("sig=", 'sig"', "signature"),
        ),
        (
            rf"(?i)((?:token(?!{_GAP}{_COUNT})|passw\w{{0,20}}|passphrase|(?<![a-z`])pwd"
            r"|secret|credentials?|auth|jwt"
            r"|(?<![a-z])t?otp(?:[ _-]?code)?"
            rf"|(?<![a-z0-9_])sig|signature|{_KEYS}(?:[_-](?:id|data))?|accesskeyid"
            rf"){_GAP}){_VALUE}"
        ),
        _named,
    ),
    # DB_PASS=x, 'GH_PAT': 'x', ADMIN_PW: x; pass=x where x looks random
    SecretPattern(
        ("pass", "_pat", "pw"),
        rf"(\b(?:[A-Z0-9]{{1,40}}_){{1,8}}(?:PASS|PAT|PW){_GAP}){_VALUE}",
        _named,
    ),
    SecretPattern(
        ("pass", "pw"),
        rf"((?i:\b(?:pass|pw){_GAP}|\bpassw(?:or)?d\s{{1,4}})(?:{_QUOTE})?){_STRANGE}",
        AFTER_FIRST,
    ),
    # Fernet key: x; a key in hexadecimal, whoever's it is
    SecretPattern(
        ("key",),
        (
            rf"((?i:\bkey(?: is)?(?:[:：＝]| ?=)?[ \t]{{1,4}})(?:{_QUOTE})?)"
            r"(?:(?=[0-9a-f]{0,64}\d)(?=\d{0,64}[a-f])[0-9a-f]{32,64}\b"
            rf"|(?=[\w+/-]{{20}}){_MIXED}[\w+/=-]{{0,400}}(?![\w.:/]))"
        ),
        AFTER_FIRST,
    ),
    # the password is x, secret access key is "x"
    SecretPattern(
        _SECRET_SIGNS,
        (
            rf"((?i:{_SECRET_NAME}{_QUOTE}?\s{{1,4}}(?:is|was|ist|equals)(?: set to)?:?\s{{1,4}}))"
            rf"(?P<value>{_QUOTE}?{_NUMBERED})"
        ),
        _named,
        (" is", " was", " ist", " equals"),
    ),
    SecretPattern(
        _SECRET_SIGNS,
        (
            rf"((?i:(?:passwo?r?[dt]|passphrase|{_KEYS})\s{{1,4}}(?:is|was|ist):?\s{{1,4}}))"
            rf"(?P<value>{_QUOTED})"
        ),
        _named,
        (" is", " was", " ist"),
    ),
    # Password for user: x
    SecretPattern(
        ("password for ", "passphrase for "),
        rf"(?i)(\bpass(?:word|phrase) for [^:\n]{{1,200}}:[ \t]{{1,4}}){_NUMBERED}",
        AFTER_FIRST,
    ),
    # Kennwort: x, mot de passe : x
    SecretPattern(
        _LATIN_SIGNS,
        rf"(?i)((?<![a-z]){_LATIN}(?:{_GAP}|\s(?:ist|est|es|é|è|is)\s{{1,4}})){_VALUE}",
        _named,
    ),
    # SecretStr('x') without a name
    SecretPattern(
        ("secretstr(", "secretbytes("),
        rf"(\bSecret(?:Str|Bytes)\(\s{{0,4}}[bBrRuU]{{0,2}})(?P<value>{_QUOTED})",
        _named,
    ),
    # <password>x</password>
    SecretPattern(
        ("</",),
        rf"(?i)(<(?:[\w.:]{{0,40}}[_.:-])?{_SECRET_NAME}>){_NOT_YET}[^<>\s]{{4,400}}(?=</)",
        AFTER_FIRST,
    ),
)

FOREIGN_PATTERNS = (
    # 密码：x, 비밀번호는 x, Contraseña: x
    SecretPattern(
        (
            *(
                "密",
                "口令",
                "金鑰",
                "令牌",
                "凭证",
                "パスワード",
                "暗証",
                "トークン",
                "비밀번호",
                "암호",
                "토큰",
            ),
            *("пароль", "токен", "סיסמה", "كلمة", "पासवर्ड", "รหัส", "κωδικός"),
        ),
        (
            rf"(?i)({_OTHER_SCRIPTS}(?:{_GAP}|\s{{0,4}}(?:为|為|是|は|는|은|это)\s{{0,4}}[:：]?\s{{0,4}}"
            rf"(?={_QUOTE}|[!-~]))){_VALUE}"
        ),
        _named,
    ),
    SecretPattern(
        tuple("ñłşöóüéẩậ：＝"),
        rf"(?i)((?<![a-z]){_LATIN}(?:{_GAP}|\s(?:ist|est|es|é|è|is)\s{{1,4}})){_VALUE}",
        _named,
    ),
)
"""Only of texts that are not ASCII."""

_ROWS = (
    # {"name": "DB_PASSWORD", "value": "x"}, also over two lines and in XML
    # ('DB_PASSWORD', 'x'); setenv DB_PASSWORD x
    SecretPattern(
        ("value",),
        (
            rf"(\bname{_QUOTE}?\s{{0,4}}[:=>]\s{{0,4}}{_QUOTE}?"
            rf"(?P<name>[A-Za-z][\w.-]{{1,80}})\b[^{{}}\n]{{0,120}}?"
            rf"(?:{_LINE})?\bvalue{_QUOTE}?\s{{0,4}}[:=>]\s{{0,4}}){_VALUE}"
        ),
        _if_secret,
    ),
    SecretPattern(
        ("value",),
        (
            rf"(\bvalue{_QUOTE}?\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}?){_BARE}"
            rf"(?P<after>{_QUOTE}?,\s{{0,4}}{_QUOTE}?name{_QUOTE}?\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}?"
            r"(?P<name>[A-Za-z][\w.-]{1,80}))"
        ),
        _between_if_secret,
    ),
    SecretPattern(
        ("('", '("', "['", '["', '\\"'),
        (
            r"([(\[](?P<open>\\{0,15}[\"'])(?![a-z]{1,80}\\{0,15}[\"'])"
            r"(?P<name>[A-Za-z]\w{1,80})(?P=open),"
            r" {0,4}(?P<second>\\{0,15}[\"']))(?:(?!(?P=second))[^\n]){1,4000}"
        ),
        _pair,
    ),
    SecretPattern(
        ("set ", "setenv ", "env "),
        (
            r"(\b(?:setenv|set(?: -\w{1,3})?|ENV)\s{1,4}(?P<name>[A-Za-z]\w{1,80}_\w{1,80})\s{1,4})"
            rf"(?!set |to ){_VALUE}"
        ),
        _if_secret,
    ),
    # NCCL_X set by environment to y
    SecretPattern(
        (" set to ", " set by env"),
        r"((?P<name>\b[A-Z][A-Z0-9_]{1,80}) set (?:by environment )?to )[^\"\n]+",
        _pair,
    ),
    # cells and columns of a table: | api_key | x |, WANDB_API_KEY    x
    SecretPattern(
        _SECRET_SIGNS,
        (
            rf"((?i:{_SECRET_NAME})(?:[_-]id)?{_QUOTE}?"
            rf"(?:[ \t]{{0,60}}[|│┃║┊\t][ \t|│┃║┊]{{0,60}}|[ \t]{{2,60}}|(?<=_KEY) |[;,]"
            rf"(?=[^\s;,])){_QUOTE}?)"
            rf"{_NUMBERED}"
        ),
        AFTER_FIRST,
        ("  ", "\t", "|", "│", "┃", "║", "┊", "_key ", ";", ","),
    ),
    # machine x login name password x, also over lines; its last line alone
    SecretPattern(
        ("login", "account"),
        (
            rf"(?i)(\b(?:login|account)[ \t]{{1,9}}\S{{1,80}}(?:[ \t]{{1,9}}"
            rf"|{_LINE})password[ \t]{{1,9}})"
            rf"{_BARE}"
        ),
        AFTER_FIRST,
    ),
    SecretPattern(
        ("password ", "password\t"),
        rf"(?im)((?:^|[\s:>\]|])password[ \t]{{1,9}}){_NUMBERED}[ \t]{{0,9}}$",
        AFTER_FIRST,
    ),
)

_STANDARD_INPUT = (
    # echo x | sudo -S, printf x | docker login --password-stdin, sudo -S <<< x
    SecretPattern(
        ("echo", "printf"),
        (
            r"(\b(?:echo|printf)\s{1,4}(?:-\w{1,4}\s{1,4}){0,3}\\{0,15}[\"']?)(?![$\[])"
            r"(?:[^\n|\"'\\]|\\{1,15}n){1,200}"
            r"(?P<after>\\{0,15}[\"']?\s{0,4}\|\s{0,4}(?:sudo\b[^|\n]{0,80}?\s(?:-\w{0,6}S\b"
            r"|--stdin)"
            r"|[^|\n]{0,120}?--(?:\w{1,10}-)?(?:password|passphrase|token|key)-stdin"
            r"|[^|\n]{0,120}?--with-token"
            r"|[^|\n]{0,60}?\b(?:chpasswd|kinit|cryptsetup|smbpasswd|vncpasswd)\b"
            r"|[^|\n]{0,60}?passwd --stdin"
            r"|gpg\b[^|\n]{0,120}?--passphrase-fd|openssl\b[^|\n]{0,120}?-pass\w{0,3} stdin))"
        ),
        _between,
    ),
    SecretPattern(
        ("<<<",),
        (
            r"(\b(?:sudo\b[^|\n]{0,80}?\s-\w{0,6}S|[^|\n]{0,120}?-stdin"
            r"|[^|\n]{0,120}?--with-token|chpasswd|kinit)"
            rf"\b[^|\n]{{0,80}}?<<<\s{{0,4}})(?P<value>{_QUOTED}|{_BARE})"
        ),
        _named,
    ),
)


def _option(programs: str, options: str) -> str:
    """A program, any words of it, and an option whose value is a secret."""
    return rf"\b(?:{programs})(?![A-Za-z0-9_])[^\n|;]{{0,200}}?{_START}{options}"


_COMMANDS = (
    # --token x, '--token', 'x', --user name:x
    SecretPattern(
        (*_SECRET_SIGNS, "-pw", "-pat", "-sas", *_LATIN_SIGNS),
        (
            rf"(?i)({_START}--?[\w.-]{{0,40}}"
            rf"(?:(?:{_PASSWORD}|{_LATIN}|(?<![a-z])(?:pw|pwd)){_APART}"
            rf"|(?:{_SECRET_NAME}|(?<![a-z])(?:pat|sas)){_APART}{_NO_NUMBER}))"
            rf"(?!-)(?P<value>(?<=\0){_NOT_YET}[^\0]{{1,4000}}|{_QUOTED}|{_BARE})"
        ),
        _named,
        ("-",),
    ),
    SecretPattern(
        ("--auth", "--key", "-auth", "-key"),
        rf"(?i)({_START}--?(?:auth|key)(?:{_NEXT}|={_QUOTE}?))(?![-/.~$]){_NUMBERED}",
        AFTER_FIRST,
    ),
    SecretPattern(
        ("-u", "--user", "--proxy-user"),
        (
            rf"({_START}(?:(?:-u|--user|--proxy-user|-U)(?:=|{_NEXT})|-u)[\w.@-]{{1,60}}:)"
            rf"(?!-){_NO_NUMBER}{_BARE}"
        ),
        AFTER_FIRST,
    ),
    # docker login -p x, mysql -px, sshpass -p x, redis-cli -a x, ldapsearch -w x, zip -P x
    SecretPattern(
        (
            *(
                "login",
                "upload",
                "sshpass",
                "mysql",
                "mariadb",
                "redis-cli",
                "mongo",
                "cqlsh",
                "ldap",
                "7z",
            ),
            *("rar ", "rar\0", "rar'", 'rar"', "rar\\", "ipmitool", "zip", "sqlcmd", "bcp"),
            *("mosquitto", "openssl"),
        ),
        (
            "("
            + "|".join(
                [
                    _option(
                        r"docker|podman|nerdctl|skopeo|helm|oras|az|twine",
                        rf"(?:login|upload)\b[^\n|;]{{0,200}}?{_START}-p{_NEXT}",
                    ),
                    _option(r"mongo\w{0,10}|cqlsh|sshpass", rf"-p(?:{_NEXT}|[\"']?(?=[^\s\"'-]))"),
                    _option(r"mysql\w{0,10}|mariadb\w{0,10}", r"-p[\"']?(?=[^\s\"'-])"),
                    _option(r"7z[azr]?|(?:un)?rar", r"-h?p[\"']?(?=[^\s\"'-])"),
                    _option(r"ldap\w{1,12}", rf"-w(?:{_NEXT}|(?=[^\s\"'-]))"),
                    _option(
                        r"ipmitool|(?:un)?zip|sqlcmd|bcp|mosquitto_\w{1,8}",
                        rf"-P(?:{_NEXT}|(?=[^\s\"'-]))",
                    ),
                    _option(r"redis-cli|ldappasswd", rf"(?:-a|--pass){_NEXT}"),
                    _option(r"openssl", rf"-(?:pass(?:in|out)?{_NEXT}pass:|k{_NEXT})"),
                ]
            )
            + rf"){_BARE}"
        ),
        AFTER_FIRST,
    ),
    # smbclient -U name%x, htpasswd -b file name x, mc alias set name url user x
    SecretPattern(
        ("-u", "--user"),
        rf"({_START}(?:-U|--user)(?:=|{_NEXT})?[\w.@/\\-]{{1,60}}?%)(?![-%]){_BARE}",
        AFTER_FIRST,
        ("%",),
    ),
    SecretPattern(
        ("htpasswd", "mc alias", "rabbitmqctl", "vault", "wpa_passphrase"),
        (
            rf"(\bhtpasswd(?:(?:{_NEXT}-[a-mo-zA-Z]{{1,8}}){{1,4}}(?<=b){_NEXT}{_WORD}"
            rf"|{_NEXT}-\w{{0,7}}n\w{{0,7}}(?:{_NEXT}-\w{{1,8}}){{0,3}}){_NEXT}{_WORD}{_NEXT}"
            r"|\bmc alias set(?:\s{1,4}[^\s]{1,200}){3}\s{1,4}[\"']?"
            rf"|\brabbitmqctl{_NEXT}(?:add_user|change_password){_NEXT}[^\s\0\"']{{1,80}}{_NEXT}"
            rf"|\bwpa_passphrase{_NEXT}[^\s\0\"']{{1,80}}{_NEXT}"
            rf"|\bvault{_NEXT}login{_NEXT}(?!-)){_BARE}"
        ),
        AFTER_FIRST,
    ),
    SecretPattern(
        ("login",),
        (
            rf"(?i)(\bwandb(?:{_NEXT}|\.)login\b[^\n]{{0,200}}?)(?<![0-9a-f])"
            rf"(?:local-)?[0-9a-f]{{40}}(?![0-9a-f])"
        ),
        AFTER_FIRST,
    ),
)

# What says itself that it is one, by how it begins.  At least ten characters follow, one of them
# no small letter.
_STARTS = (
    *("ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_", "sk-", "sk_live_", "xoxa-", "xoxb-"),
    *(
        "xoxe-",
        "xoxe.xox",
        "xoxp-",
        "xoxr-",
        "xoxs-",
        "xapp-",
        "npm_",
        "pypi-",
        "nvapi-",
        "dckr_pat_",
    ),
    *(
        "dckr_oat_",
        "dop_v1_",
        "doo_v1_",
        "dor_v1_",
        "gsk_",
        "r8_",
        "lin_api_",
        "dp.pt.",
        "dp.st.",
        "glsa_",
    ),
    *("glpat-", "gldt-", "glft-", "glrt-", "glcbt-", "glptt-", "glsoat-", "glagent-", "glc_"),
    *(
        "xai-",
        "pplx-",
        "csk-",
        "tvly-",
        "pcsk_",
        "jina_",
        "tgp_v1_",
        "rpa_",
        "lsv2_pt_",
        "lsv2_sk_",
    ),
    *(
        "sbp_",
        "sb_secret_",
        "vcp_",
        "vercel_blob_rw_",
        "nfp_",
        "ntn_",
        "figd_",
        "sntrys_",
        "sntryu_",
    ),
    *(
        "hcaik_",
        "phx_",
        "sqp_",
        "squ_",
        "sqa_",
        "pnu_",
        "pul-",
        "pscale_tkn_",
        "pscale_pw_",
        "napi_",
    ),
    *(
        "tskey-",
        "xkeysib-",
        "whsec_",
        "rubygems_",
        "bkua_",
        "wandb_v1_",
        "api_org_",
        "e2b_",
        "apify_api_",
    ),
    *(
        "ops_eyj",
        "atatt3",
        "atctt3",
        "pmak-",
        "ccipat_",
        "kgat_",
        "gocspx-",
        "ltai5t",
        "akltm",
        "absk",
        "1//0",
    ),
)
_SPELLED = {
    "ops_eyj": "ops_eyJ",
    "atatt3": "ATATT3",
    "atctt3": "ATCTT3",
    "pmak-": "PMAK-",
    "ccipat_": "CCIPAT_",
    "kgat_": "KGAT_",
    "gocspx-": "GOCSPX-",
    "ltai5t": "LTAI5t",
    "akltm": "AKLTM",
    "absk": "ABSK",
}
"""Of these the capitals count."""

_KNOWN_FORMS = (
    # hf_model_0001_0.pt is none
    SecretPattern(
        ("hf_",),
        (
            r"(?<![A-Za-z0-9])hf_(?:(?=[a-z]{0,80}[A-Z0-9])[A-Za-z0-9]{10,}"
            r"|[a-z]{30,})[A-Za-z0-9_-]{0,80}"
        ),
        REDACTED,
    ),
    SecretPattern(
        _STARTS,
        (
            rf"(?<![A-Za-z0-9])(?:{'|'.join(re.escape(_SPELLED.get(one, one)) for one in _STARTS)})"
            r"(?:(?=[a-z_-]{0,80}[A-Z0-9])[A-Za-z0-9_-]{10,}|[a-z]{30,})"
        ),
        REDACTED,
    ),
    SecretPattern(
        (
            *("akia", "asia", "aiza", "akc", "ya29.", "dapi", "shp", "sg.", "hvs.", "hvb.", "hvr."),
            *("gaaaaa", "nrak-", "aq.ab8", "q~", "key-"),
        ),
        (
            r"(?<![A-Za-z0-9])(?:(?:AKIA|ASIA|AIza)[A-Za-z0-9_-]{10,}|AKC[A-Za-z0-9]{20,}"
            r"|ya29\.[A-Za-z0-9_-]{10,}"
            r"|dapi[0-9a-f]{32}(?:-\d)?|shp(?:at|ca|pa|ss)_[0-9a-f]{32}"
            r"|SG\.[\w-]{16,64}\.[\w-]{16,128}"
            r"|hv[sbr]\.[\w-]{20,}|gAAAAA[\w=-]{60,}|NRAK-[A-Z0-9]{27}|AQ\.Ab8[\w-]{20,}"
            r"|key-[0-9a-f]{32}\b"
            r"|[\w.~-]{3}\dQ~[\w.~-]{31,34})"
        ),
        REDACTED,
    ),
    SecretPattern(("age-secret-key-1",), r"AGE-SECRET-KEY-1[A-Z0-9]{20,}", REDACTED),
    SecretPattern(("munge:",), r"MUNGE:[A-Za-z0-9+/]{16,}={0,2}:?", REDACTED),
    # JSON web token
    SecretPattern(
        ("eyj",), r"\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)?", REDACTED
    ),
)

PATTERNS = (
    *_KEYS_AND_URLS,
    *_TUPLES,
    *_NAMED_VALUES,
    *_ROWS,
    *_STANDARD_INPUT,
    *_COMMANDS,
    *_KNOWN_FORMS,
)

_OVER_LINES = re.compile(
    r"-{4} ?BEGIN |\"{3}|'{3}|\b(?:login|account)[ \t]"
    r"|\bname[\"']?\s{0,4}[:=>][^\n]{0,200}\n[^\n]{0,80}\bvalue\b"
)
_OVER_LINES_SIGNS = ("BEGIN ", '"""', "'''", "login", "account", "value")


def is_over_lines(text: str) -> bool:
    """Whether a text may hold a secret that only several of its lines together tell."""
    signs = any(map(text.__contains__, _OVER_LINES_SIGNS))
    return signs and _OVER_LINES.search(text) is not None


# The middle of a key whose first line is elsewhere: base64 as openssl and ssh-keygen break it.
TORN = re.compile(
    r"(?m)(?<![^\s>:\]|])(?=[A-Za-z0-9+/]{64})(?=[A-Z0-9+/]*[a-z])(?=[a-z0-9+/]*[A-Z])"
    r"(?=[A-Za-z+/]*[0-9])"
    r"[A-Za-z0-9+/]{64}(?:[A-Za-z0-9+/]{6}){0,2}$"
)
