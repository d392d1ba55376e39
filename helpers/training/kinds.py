"""Which kind of training a recipe asks for."""

from helpers.models import PostHoc, Recipe, SinkTask
from helpers.training.added import AddedRegisters
from helpers.training.sinks import SinkTraining
from helpers.training.tasks import FromScratch

KINDS = {Recipe: FromScratch, PostHoc: AddedRegisters, SinkTask: SinkTraining}
