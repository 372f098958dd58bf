"""Arguments and classes that exist for code written for torch, torchao or bitsandbytes."""
