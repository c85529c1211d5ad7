"""Models, one file each, found by the file's name (``model.name``).

A file's ``plugin`` is called as ``plugin(shape, classes, *, own keys)``: ``shape`` is one sample's without the batch,
and the keyword parameters become validated keys of ``[model]``. It returns a plain ``nn.Module`` for ONE client, with

* ``head``: the output layer, last in registration order;
* ``features(x)``: the head's input [batch, width], and ``forward(x) = head(features(x))``;
* its layers as direct children in order, because "the upper p layers" counts children that hold parameters.

Everything in ``forward`` must run under ``torch.func.vmap``: no in-place change of the input, no branch on values.
"""
