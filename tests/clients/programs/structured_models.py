"""Pydantic models that programs ask answers for. Texts and lists have a largest length: the demo model would write tales into them."""
import datetime
import enum
import typing
import uuid

from pydantic import BaseModel, ConfigDict, Field

Word = typing.Annotated[str, Field(max_length=30)]
QUESTION = "Once upon a time there was a king. Answer as JSON."


class Metal(enum.Enum):
    GOLD = "gold"
    IRON = "iron"


class Closed(BaseModel):
    """No members but these, or the demo model makes up some without end."""
    model_config = ConfigDict(extra="forbid")


class Cat(Closed):
    kind: typing.Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(Closed):
    kind: typing.Literal["dog"]
    name: typing.Optional[Word]


class Ring(Closed):
    metal: Metal
    weight: float = Field(gt=0, lt=50)


class Doll(Closed):
    painted: bool
    within: typing.Optional["Doll"] = Field(description="a smaller one, or null")


class Treasure(Closed):
    """Without limits, which Anthropic's client leaves out of schemas."""
    rings: typing.Union[Metal, bool, None]
    guard: typing.Literal["dragon", "dwarf"]
    buried: datetime.date
    chest: Doll


class King(Closed):
    """A king, as OpenAI's strict schemas can have him: all members are required."""
    name: Word
    age: int = Field(ge=18, le=99, description="in years")
    mood: typing.Literal["merry", "wrathful", 3]
    realm: typing.Union[Word, int, None]
    animal: typing.Union[Cat, Dog]
    animals: list[typing.Union[Cat, Dog]] = Field(max_length=2)
    ring: Ring
    crowned: datetime.date
    letter: uuid.UUID


class Court(Closed):
    """Not strict: defaults, a discriminator, names that are not listed, tuples."""
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"king": "Otto"}]})
    king: Word = "Otto"
    guests: dict[str, typing.Annotated[int, Field(ge=0, le=9)]] = Field(default={}, max_length=1)
    any_of_them: typing.Annotated[typing.Union[Cat, Dog], Field(discriminator="kind")]
    pair: tuple[int, Metal] = Field(examples=[[1, "gold"]])
    metals: dict[Metal, bool] = Field(max_length=2)
    heirs: list[Word] = Field(default_factory=list, max_length=2)
    until: typing.Optional[datetime.datetime] = None


# What the scripted models write where the server knows no schema.
COURT = Court(king="Otto", any_of_them=Cat(kind="cat", lives=9), pair=(3, Metal.IRON), metals={Metal.GOLD: True}, heirs=["Ida"])


def check(value, model):
    """Says that it is one of these; the test counts."""
    assert isinstance(value, model), repr(value)  # instructor has types of its own beneath
    assert model.model_validate_json(value.model_dump_json()).model_dump() == value.model_dump(), repr(value)
    print("good", model.__name__, value)
