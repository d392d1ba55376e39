"""interventions."""

from helpers.interventions.export import model_with_test_time_registers
from helpers.interventions.nested import nested
from helpers.interventions.neurons import (
    Neurons,
    RegisterNeuron,
    ablated_neurons,
    neuron_conditions,
    random_neurons,
    test_time_registers,
)
from helpers.interventions.tokens import (
    MOST_REGISTERS,
    REGISTER_STD,
    appended_registers,
    dropped_patches,
    intervention,
    moved_positions,
)

__all__ = [
    "MOST_REGISTERS",
    "Neurons",
    "REGISTER_STD",
    "RegisterNeuron",
    "ablated_neurons",
    "appended_registers",
    "dropped_patches",
    "model_with_test_time_registers",
    "intervention",
    "moved_positions",
    "nested",
    "neuron_conditions",
    "random_neurons",
    "test_time_registers",
]
