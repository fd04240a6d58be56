"""Choice of OpenMM's platform: the GPU of the prediction if OpenMM can use it, else the CPU."""

import openmm
import torch

# OpenMM's platforms for each of PyTorch's device types, the fastest first.
_PLATFORMS = {"cuda": ("CUDA", "HIP", "OpenCL", "CPU"), "mps": ("OpenCL", "CPU"), "cpu": ("CPU",)}


def platforms(device: torch.device) -> list[openmm.Platform]:
    """Return the working platforms for this device, the fastest first and the CPU last.

    They are set up to be deterministic. On the CPU, OpenMM uses as many threads as PyTorch.
    """
    installed = {openmm.Platform.getPlatform(index).getName() for index in range(openmm.Platform.getNumPlatforms())}
    working = []
    for name in [name for name in _PLATFORMS.get(device.type, ("CPU",)) if name in installed]:
        platform = openmm.Platform.getPlatformByName(name)
        own = ("Threads", torch.get_num_threads()) if name == "CPU" else ("DeviceIndex", device.index or 0)
        for key, value in (own, ("DeterministicForces", "true")):
            # Defaults of the platform also apply to the contexts that PDBFixer makes.
            if key in platform.getPropertyNames():
                platform.setPropertyDefaultValue(key, str(value))
        if name == "CPU" or _works(platform):
            working.append(platform)
    return working


def _works(platform: openmm.Platform) -> bool:
    """Return whether a context can be made: a platform may be installed without a driver or a device."""
    system = openmm.System()
    system.addParticle(1.0)
    try:
        openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    except openmm.OpenMMException:
        return False
    return True
