"use strict";
const CRITERIA = {"ntl_was":"NTL-WAS","ntl_mse":"NTL-MSE","ntl_mae":"NTL-MAE","ntl_huber":"NTL-Huber","crps":"CRPS","gaussian_smoothing":"Gaussian smoothing","smoothed_wasserstein":"smoothed NTL-WAS","dist2":"DIST2","del_loss":"DEL","smmd":"SMMD","raft":"RAFT","number_level":"number-level NTL","ntil":"NTIL","hl_gauss":"HL-Gauss"};
