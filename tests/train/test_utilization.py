"""What a device could do, by its name, and what kind of work a kernel does."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch (the extra `train`)")

from skippipe.devices import find_device, peak_flops  # noqa: E402 - after torch is known to be there
from skippipe.errors import InputError, shown  # noqa: E402
from skippipe.train.observe.utilization import IDLE, break_down, kind_of  # noqa: E402


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("cpu", None),
    ],
)
def test_peaks_by_the_names_that_devices_have(name: str, peak: float | None) -> None:
    assert peak_flops(name) == peak


def test_shares_are_of_the_time_by_the_clock() -> None:
    found = break_down({"aten::mm": 0.6, "nvjet_tst": 0.2, "flash_fwd": 0.4, "norm": 0.2}, iterations=4, seconds=0.5)
    assert found.shares == pytest.approx({"products": 0.4, "attention": 0.2, "elementwise": 0.1, IDLE: 0.3})
    assert list(found.shares) == ["products", IDLE, "attention", "elementwise"]
    assert [name for name, _ in found.slowest] == ["aten::mm", "flash_fwd", "nvjet_tst", "norm"]
    assert found.slowest[0][1] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("flash_bwd_dq_dk_dv_loop_kernel", "attention"),
        ("nvjet_tst_128x256_64x4", "products"),
        ("Memcpy HtoD (Pageable -> Device)", "copies"),
        ("triton_red_fused_log_softmax_0", "loss"),
        ("triton_poi_fused_mul_silu_1", "elementwise"),
    ],
)
def test_kinds_of_kernels(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


@pytest.mark.parametrize("name", ["", "gpu", "meta", "cuda:x", "cuda:-1", "cuda:99"])
def test_errors_name_the_setting(name: str) -> None:
    with pytest.raises(InputError, match=rf"^devices\[1\]: expected .*, got {shown(name)}$"):
        find_device(name, "devices[1]")
