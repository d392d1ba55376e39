"""What changes a forward pass for as long as it lasts, and what is made of it for good."""
# ruff: noqa: F401

from helpers.interventions.export import model_with_test_time_registers, unwritable, write_model
from helpers.interventions.neurons import (
    MatchedNeuron,
    Neurons,
    RegisterNeuron,
    ablated_neurons,
    averaged_neurons,
    moved_neurons,
    neuron_conditions,
    random_neurons,
    shift_conditions,
    test_time_registers,
    units_by_block,
    where_given,
)
from helpers.interventions.positions import (
    expected_at,
    moved_sources,
    neurons_off_at,
    patches_carrying,
    position_conditions,
    removed_patches,
    rolled_content,
    unit_treatments,
)
from helpers.interventions.replaced import masked_keys, replaced_tokens, resumed, set_channels
from helpers.interventions.tokens import (
    INITS,
    appended_registers,
    dropped_patches,
    intervention,
    moved_positions,
    nested,
)
