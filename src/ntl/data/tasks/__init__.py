"""One module per dataset, with a function `load(settings) -> TaskData`; see `ntl.data`."""
