#pragma once
// How flags and logs name a kind of device.

#include "proto/model.pb.h"

namespace somnus {

inline const char* DeviceName(v1::DeviceType device) {
  return device == v1::DEVICE_TYPE_CUDA ? "cuda" : "cpu";
}

}  // namespace somnus
