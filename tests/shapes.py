"""What jaxtyping checks the signatures of the packages in pyproject.toml with: a name, since it
does not take several packages beside a checker that is called with arguments."""

from beartype import BeartypeConf, beartype

# An int where a float is asked for is right, as in Python itself.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
