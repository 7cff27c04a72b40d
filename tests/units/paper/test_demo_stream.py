"""The stream of the demonstration: its verdicts are the ones that the page explains."""

import numpy as np
import pytest

from kalprox.paper import demo


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_change_is_found_and_forgetting_repairs_it(seed):
    found = demo.learn_stream(seed)
    words = {name: found[f"verdict_{name}"].word for name in demo.RUNS}
    assert words == {"steady": "calibrated", "changed": "drifting", "forgetful": "calibrated"}
    assert found["verdict_changed"].coverage < 0.94  # 95% intervals
    assert np.all(abs(found["mean_steady"][-1] - demo.TRUTH) < 5 * found["std_steady"][-1])
    assert abs(found["mean_forgetful"][-1, 0] - demo.CHANGED_TO) < 0.2 < found["mean_changed"][-1, 0]
    said = demo.stream_conclusion(found)
    assert said.index("calibrated") < said.index("drifting") < said.rindex("calibrated")
