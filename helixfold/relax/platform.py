"""Choose where OpenMM computes: the GPU that the prediction was made on if OpenMM can use it, else the CPU."""

import openmm
import torch

# By kind of PyTorch's device; what comes first is fastest.
_PLATFORMS = {"cuda": ("CUDA", "HIP", "OpenCL", "CPU"), "mps": ("OpenCL", "CPU"), "cpu": ("CPU",)}


def platforms(device: torch.device) -> list[openmm.Platform]:
    """Return the platforms that work here for this device, the preferred one first; the last is always the CPU.

    They are set up so that the same input gives the same output there. On the CPU as many threads are used as PyTorch
    uses.
    """
    offered = {openmm.Platform.getPlatform(index).getName() for index in range(openmm.Platform.getNumPlatforms())}
    found = []
    for name in [name for name in _PLATFORMS.get(device.type, ("CPU",)) if name in offered]:
        platform = openmm.Platform.getPlatformByName(name)
        own = ("Threads", torch.get_num_threads()) if name == "CPU" else ("DeviceIndex", device.index or 0)
        for key, value in (own, ("DeterministicForces", "true")):
            # As defaults of the platform, for PDBFixer makes contexts of its own there.
            if key in platform.getPropertyNames():
                platform.setPropertyDefaultValue(key, str(value))
        if name == "CPU" or _works(platform):
            found.append(platform)
    return found


def _works(platform: openmm.Platform) -> bool:
    """Return whether a platform computes: it can be offered by a library that finds no driver or no device."""
    system = openmm.System()
    system.addParticle(1.0)
    try:
        openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    except openmm.OpenMMException:
        return False
    return True
