#pragma once
// The best rates of a GPU's memory and bus.

namespace somnus {

struct GpuCeilings {
  double copy_gbps = 0;            // device to device; bytes read plus bytes written
  double host_to_device_gbps = 0;  // from pinned memory
  double device_to_host_gbps = 0;
};

}  // namespace somnus
