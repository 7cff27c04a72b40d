"""The stream of the demonstration: its verdicts are the ones that the page explains."""

import numpy as np
import pytest

from kalprox.paper import demo_stream


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_change_is_found_and_forgetting_repairs_it(seed):
    found = demo_stream.compute(seed)
    words = {name: found[f"verdict_{name}"].word for name in demo_stream.RUNS}
    assert words == {"steady": "calibrated", "changed": "drifting", "forgetful": "calibrated"}
    assert found["verdict_changed"].coverage < 0.94  # 95% intervals
    assert np.all(abs(found["mean_steady"][-1] - demo_stream.TRUTH) < 5 * found["std_steady"][-1])
    assert abs(found["mean_forgetful"][-1, 0] - demo_stream.CHANGED_TO) < 0.2 < found["mean_changed"][-1, 0]
    said = demo_stream.conclusion(found)
    assert said.index("calibrated") < said.index("drifting") < said.rindex("calibrated")
