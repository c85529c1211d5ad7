// What a build of torch without CUDA lacks for tensors that call themselves CUDA's: a guard that says which
// device is current, and hooks that say that there is one. Neither does anything.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device gpu(c10::DeviceType::CUDA, 0);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device exchangeDevice(c10::Device) const override { return gpu; }
  c10::Device getDevice() const override { return gpu; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, gpu); }
};

}  // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, Guard);
}

namespace at {
// The registry looks this up by name when torch asks for CUDA the first time.
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
};
REGISTER_CUDA_HOOKS(CUDAHooks);
}
